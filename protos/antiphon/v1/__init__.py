"""The wire contract: generated protobuf messages and gRPC stubs."""
