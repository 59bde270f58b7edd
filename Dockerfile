# One image per process. Versions are those of requirements.lock, each image lists its own in
# /usr/share/doc/antiphon/sbom.cdx.json (CycloneDX).
#
#     docker build --target services -t antiphon/services:0.1.0 .        reward, transition; no torch
#     docker build --target generation -t antiphon/generation:0.1.0 .
#     docker build --target learner -t antiphon/learner:0.1.0 .
#
# For NVIDIA GPUs: --build-arg TORCH_FROM="--index-url https://pypi.org/simple", tag 0.1.0-cuda.
# To read and write weights on S3 or GCS: --build-arg STORAGE="s3 gcs".
# Behind a mirror: --secret id=pip,src=pip.conf.
ARG BASE=docker.io/library/python:3.11-slim-bookworm
ARG ENGINE=ghcr.io/huggingface/text-generation-inference:3.3.7

# pip and what else is needed to build, in an environment that no image contains.
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONFIG_FILE=/run/secrets/pip \
    PIP_PROGRESS_BAR=off PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
RUN --mount=type=secret,id=pip \
    python3 -m venv /opt/build && \
    /opt/build/bin/pip install -q hatchling==1.33.0 cyclonedx-bom==7.5.0 && \
    python3 -m venv --without-pip /opt/antiphon
COPY pyproject.toml requirements.lock ./
ARG STORAGE=""
# What a set of extras needs, as pyproject.toml says it.
# hadolint ignore=SC2086
RUN printf '%s\n' \
    'import sys, tomllib' \
    'project = tomllib.load(open("pyproject.toml", "rb"))["project"]' \
    'extras = project["optional-dependencies"]' \
    'print(*project["dependencies"], *(r for e in sys.argv[1:] for r in extras[e]), sep="\n")' \
    > needs.py && \
    python3 needs.py > services.txt && \
    python3 needs.py generation tgi ${STORAGE} > generation.txt && \
    python3 needs.py learner lora tensorboard ${STORAGE} > learner.txt && \
    python3 needs.py vllm ${STORAGE} > vllm.txt && \
    sed -n 's/^torch==/torch==/p' requirements.lock > torch.txt

FROM build AS project
COPY . .
RUN /opt/build/bin/python -m hatchling build -t wheel

# The dependencies come first: they stay in the build cache when only the code changes.
FROM build AS services-environment
RUN --mount=type=secret,id=pip \
    /opt/build/bin/pip --python /opt/antiphon install -q -c requirements.lock -r services.txt
COPY --from=project /build/dist /build/dist
RUN /opt/build/bin/pip --python /opt/antiphon install -q --no-deps --no-index dist/*.whl && \
    /opt/build/bin/cyclonedx-py environment /opt/antiphon/bin/python -o sbom.cdx.json

FROM build AS torch-environment
ARG TORCH_FROM="--index-url https://download.pytorch.org/whl/cpu"
# Headers, tests and development tools of torch are of no use at run time.
# hadolint ignore=SC2086
RUN --mount=type=secret,id=pip \
    /opt/build/bin/pip --python /opt/antiphon install -q --no-deps ${TORCH_FROM} -r torch.txt && \
    for folder in include share test; do \
      rm -rf /opt/antiphon/lib/python3*/site-packages/torch/$folder; \
    done && \
    find /opt/antiphon/lib/python3*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete

FROM torch-environment AS generation-environment
RUN --mount=type=secret,id=pip \
    /opt/build/bin/pip --python /opt/antiphon install -q -c requirements.lock -r generation.txt
COPY --from=project /build/dist /build/dist
RUN /opt/build/bin/pip --python /opt/antiphon install -q --no-deps --no-index dist/*.whl && \
    /opt/build/bin/cyclonedx-py environment /opt/antiphon/bin/python -o sbom.cdx.json

FROM torch-environment AS learner-environment
RUN --mount=type=secret,id=pip \
    /opt/build/bin/pip --python /opt/antiphon install -q -c requirements.lock -r learner.txt
COPY --from=project /build/dist /build/dist
RUN /opt/build/bin/pip --python /opt/antiphon install -q --no-deps --no-index dist/*.whl && \
    /opt/build/bin/cyclonedx-py environment /opt/antiphon/bin/python -o sbom.cdx.json

# What all images are: a user without rights, who writes to /tmp, /models and /runs only (volumes,
# where the root is read-only), and whose functions are found in /task.
FROM ${BASE} AS runtime
ENV PATH=/opt/antiphon/bin:$PATH HOME=/tmp HF_HOME=/models \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_WAIT_POLICY=PASSIVE
RUN mkdir /models /runs /task && chown 10001:10001 /models /runs
LABEL org.opencontainers.image.title="antiphon" \
      org.opencontainers.image.description="Cooperative training of several language models" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /task
USER 10001:10001
ENTRYPOINT ["antiphon"]
CMD ["--help"]

# Of the base's programs Python stays; env, which scripts name in their first line; ldconfig, which
# ctypes asks for libraries; and rm, which empties the sandbox's folders. No shell, package manager or
# pip does, so nothing can be RUN by a shell in a stage that begins with this one.
FROM runtime AS shell-less
USER 0:0
RUN rm -rf /usr/local/lib/python3*/site-packages/* /usr/local/lib/python3*/ensurepip \
      /usr/lib/apt /usr/lib/dpkg /usr/lib/*/perl-base /var/lib/apt /var/cache/apt && \
    find /bin/ /sbin/ /usr/bin/ /usr/sbin/ /usr/local/bin/ /usr/local/sbin/ ! -type d \
      ! -name python ! -name python3 ! -name 'python3.[0-9]*[0-9]' \
      ! -name env ! -name rm ! -name 'ldconfig*' -delete
USER 10001:10001

FROM shell-less AS services
COPY --from=services-environment /opt/antiphon /opt/antiphon
COPY --from=services-environment /build/sbom.cdx.json /usr/share/doc/antiphon/

FROM shell-less AS generation
COPY --from=generation-environment /opt/antiphon /opt/antiphon
COPY --from=generation-environment /build/sbom.cdx.json /usr/share/doc/antiphon/

FROM shell-less AS learner
COPY --from=learner-environment /opt/antiphon /opt/antiphon
COPY --from=learner-environment /build/sbom.cdx.json /usr/share/doc/antiphon/

# Generation with vLLM, which wants other versions of torch and transformers than the lock file's.
# Neither this stage nor the next one is built by make test-images: such images take many gigabytes.
# vLLM starts programs of its own, so both keep their shells.
FROM build AS vllm-environment
ARG VLLM=0.32.0
RUN --mount=type=secret,id=pip \
    /opt/build/bin/pip --python /opt/antiphon install -q -r vllm.txt "vllm==${VLLM}"
COPY --from=project /build/dist /build/dist
RUN /opt/build/bin/pip --python /opt/antiphon install -q --no-deps --no-index dist/*.whl && \
    /opt/build/bin/cyclonedx-py environment /opt/antiphon/bin/python -o sbom.cdx.json

FROM runtime AS vllm
COPY --from=vllm-environment /opt/antiphon /opt/antiphon
COPY --from=vllm-environment /build/sbom.cdx.json /usr/share/doc/antiphon/

# A generation service beside an engine that it starts, in that engine's own image, whose Python
# (3.11 or newer) it uses with an environment of its own.
#
#     docker build --target engine -t antiphon/engine:0.1.0-tgi \
#       --build-arg ENGINE=ghcr.io/huggingface/text-generation-inference:3.3.7 .
FROM ${ENGINE} AS engine
USER 0:0
ARG TORCH_FROM="--index-url https://download.pytorch.org/whl/cpu"
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONFIG_FILE=/run/secrets/pip
WORKDIR /build
COPY --from=build /build/requirements.lock /build/generation.txt /build/torch.txt ./
COPY --from=project /build/dist dist
# hadolint ignore=SC2086
RUN --mount=type=secret,id=pip \
    python3 -m venv /opt/antiphon && \
    /opt/antiphon/bin/pip install -q --no-deps ${TORCH_FROM} -r torch.txt && \
    /opt/antiphon/bin/pip install -q -c requirements.lock -r generation.txt && \
    /opt/antiphon/bin/pip install -q --no-deps --no-index dist/*.whl && \
    mkdir -p /models /task && chown 10001:10001 /models
ENV HOME=/tmp HF_HOME=/models PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /task
USER 10001:10001
ENTRYPOINT ["/opt/antiphon/bin/antiphon"]
CMD ["--help"]
