FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY .ci/metadata.py .ci/
COPY src src
RUN python -m venv /opt/hookonce \
    && /opt/hookonce/bin/pip install --no-cache-dir '.[cli,redis,postgres,prometheus]'

FROM python:3.13-slim
COPY --from=build /opt/hookonce /opt/hookonce
# Replace this file by your own receiver, or set another MODULE:RECEIVER as the command.
COPY examples/starlette_app.py /app/receiver_app.py
RUN useradd --system --uid 10001 hookonce \
    && install --directory --owner=hookonce /data
ENV PATH=/opt/hookonce/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PORT=8000
# The working folder holds the SQLite store; keep it on a volume. Python imports nothing from this folder
# (PYTHONSAFEPATH): a user who can write a file there cannot run it as code.
WORKDIR /data
VOLUME /data
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["hookonce", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["hookonce"]
CMD ["serve", "receiver_app:receiver", "--host", "0.0.0.0"]
