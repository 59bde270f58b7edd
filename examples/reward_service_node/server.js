// A reward service in JavaScript: the second answer should be two to three times as long as the
// first. It reads antiphon's .proto files as they are; nothing is generated.
//
//   node server.js [--host 127.0.0.1] [--port 50061] [--protos ../../protos]

"use strict";

const path = require("node:path");
const { parseArgs } = require("node:util");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const { values: options } = parseArgs({
  options: {
    host: { type: "string", default: "127.0.0.1" },
    port: { type: "string", default: "50061" },
    protos: { type: "string", default: path.join(__dirname, "..", "..", "protos") },
  },
});

const definition = loader.loadSync(
  [path.join(options.protos, "antiphon/v1/reward.proto"), path.join(__dirname, "health.proto")],
  { includeDirs: [options.protos], keepCase: true, longs: String, enums: String, defaults: true, oneofs: true },
);
const { antiphon, grpc: standard } = grpc.loadPackageDefinition(definition);

const NAME = "antiphon.v1.RewardService";

// --- The reward -------------------------------------------------------------------------------

// Length in characters as Python counts them, not in UTF-16 units.
const length = (text) => Array.from(text).length;

function lengthRatioReward(first, second) {
  const ratio = length(second) / Math.max(length(first), 1);
  return Math.exp(-Math.max(2 - ratio, ratio - 3, 0));
}

function scoreOf(action) {
  if (action.actions.length !== 2) {
    // One joint action that cannot be scored is no error of the call.
    return {
      joint_action_id: action.id,
      missing_reason: `got ${action.actions.length} agents, wanted 2`,
    };
  }
  const [first, second] = action.actions.map((answer) => answer.completion);
  return { joint_action_id: action.id, value: lengthRatioReward(first, second) };
}

// --- The contract -----------------------------------------------------------------------------

class InvalidRequest extends Error {}

function check(request) {
  if (request.joint_actions.length === 0) {
    throw new InvalidRequest("joint_actions: got none, wanted one at least");
  }
  const tasks = new Set(request.tasks.map((task) => task.id));
  const seen = new Set();
  request.joint_actions.forEach((action, index) => {
    const field = `joint_actions[${index}]`;
    if (action.id === "" || seen.has(action.id)) {
      throw new InvalidRequest(`${field}.id: got "${action.id}", wanted a distinct id`);
    }
    if (!tasks.has(action.task_id)) {
      throw new InvalidRequest(`${field}.task_id: got "${action.task_id}", wanted one of tasks`);
    }
    seen.add(action.id);
  });
}

const reward = {
  Score(call, callback) {
    try {
      check(call.request);
      callback(null, { scores: call.request.joint_actions.map(scoreOf) });
    } catch (error) {
      const invalid = error instanceof InvalidRequest;
      if (!invalid) console.error(error);
      callback({
        code: invalid ? grpc.status.INVALID_ARGUMENT : grpc.status.INTERNAL,
        details: invalid ? error.message : "the reward failed; see the service's log",
      });
    }
  },
  GetRewardInfo(_call, callback) {
    callback(null, {
      name: "length_ratio (Node)",
      version: "1.0.0",
      value_min: 0,
      value_max: 1,
      max_batch_size: 256,
    });
  },
};

// --- Health, for probes -----------------------------------------------------------------------

const known = (service) => service === "" || service === NAME;

const health = {
  Check(call, callback) {
    if (known(call.request.service)) callback(null, { status: "SERVING" });
    else callback({ code: grpc.status.NOT_FOUND, details: `no service ${call.request.service}` });
  },
  Watch(call) {
    call.write({ status: known(call.request.service) ? "SERVING" : "SERVICE_UNKNOWN" });
    // The stream stays open until the caller or this server ends it.
    watching.add(call);
    call.on("cancelled", () => watching.delete(call));
  },
};
const watching = new Set();

// --- The server -------------------------------------------------------------------------------

const server = new grpc.Server({
  // The learner pings every 60 s while a call is open.
  "grpc.http2.min_ping_interval_without_data_ms": 20000,
  "grpc.max_receive_message_length": 64 * 1024 * 1024,
});
server.addService(antiphon.v1.RewardService.service, reward);
server.addService(standard.health.v1.Health.service, health);
server.bindAsync(
  `${options.host}:${options.port}`,
  grpc.ServerCredentials.createInsecure(),
  (error, port) => {
    if (error) throw error;
    console.log(`reward service on ${options.host}:${port}`);
  },
);

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.once(signal, () => {
    for (const call of watching) {
      call.write({ status: "NOT_SERVING" });
      call.end();
    }
    // Calls under way are answered first.
    server.tryShutdown(() => process.exit(0));
  });
}
