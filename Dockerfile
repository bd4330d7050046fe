# syntax=docker/dockerfile:1
# GPU by default; the CPU engine with: docker build --build-arg ENGINE=cpu -t stillframe:cpu .
ARG ENGINE=gpu
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS build
ARG ENGINE
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/stillframe
ENV PATH=/opt/stillframe/bin:$PATH
WORKDIR /src
COPY requirements requirements
RUN if [ "$ENGINE" = cpu ]; then \
        pip install -r requirements/torch.txt -c requirements/cpu.txt && pip install --no-deps -r requirements/cpu.txt; \
    else \
        pip install -r requirements/gpu.txt; \
    fi
COPY . .
RUN pip install --no-deps .

FROM python:${PYTHON}-slim-bookworm
# vLLM compiles small kernels on GPUs and asks for these on CPUs.
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ libnuma1 libtcmalloc-minimal4 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/stillframe /opt/stillframe
ENV PATH=/opt/stillframe/bin:$PATH \
    STILLFRAME_HOST=0.0.0.0 \
    STILLFRAME_DATA_DIR=/data
RUN useradd --create-home --uid 1000 stillframe && install -d -o stillframe /data
USER stillframe
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m \
    CMD python -c "import os, urllib.request as r; r.urlopen('http://127.0.0.1:%s/health/ready' % os.environ.get('STILLFRAME_PORT', 8000))"
ENTRYPOINT ["stillframe"]
CMD ["serve"]
