# The command line in a container:
#   docker build -t mapmrf .
#   docker run --rm -v "$PWD:/data" mapmrf solve model.uai --json
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
# The wheel contains the machine code of all kernels for any CPU of this architecture; see docs/packaging.md.
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY --from=build /wheels /wheels
# EXTRAS are optional dependencies, such as "plots,exact,frames".
ARG EXTRAS=plots
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[$EXTRAS]" && rm -r /wheels \
    && useradd --create-home --uid 1000 mapmrf
USER mapmrf
WORKDIR /data
# Fails if the package cannot run, or if its kernels are not found.
RUN mapmrf --version && mapmrf compile --status
ENTRYPOINT ["mapmrf"]
CMD ["--help"]
