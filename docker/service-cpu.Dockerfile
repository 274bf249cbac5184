# Lamina's service on a CPU, with the bundled int8 encoder. No torch, no build tools.
#   docker build -f docker/service-cpu.Dockerfile -t lamina:cpu .

FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE NOTICE ./
COPY index index
COPY service service
COPY training training
RUN python -m venv --without-pip /opt/lamina
RUN python -m pip --python /opt/lamina/bin/python install --no-cache-dir \
      --constraint constraints.txt ".[cpu,service]"

FROM python:3.12-slim-bookworm
RUN useradd --uid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin lamina \
    && install --directory --owner lamina --mode 750 /data
COPY --from=build /opt/lamina /opt/lamina
COPY docker/entrypoint.sh /opt/lamina/bin/entrypoint
ENV PATH=/opt/lamina/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    LAMINA_DATA=/data \
    LAMINA_HOST=0.0.0.0 \
    LAMINA_PORT=7650 \
    LAMINA_DEVICE=cpu
USER lamina
WORKDIR /data
VOLUME /data
EXPOSE 7650
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['LAMINA_PORT'] + '/readyz', timeout=4)"]
ENTRYPOINT ["entrypoint"]
CMD ["serve"]
