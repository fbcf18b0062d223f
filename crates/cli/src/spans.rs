//! Spans of requests, sent to an OpenTelemetry collector. Built in with the feature `otel`.
//!
//! The variables of the OpenTelemetry specification turn this on and configure it, so that one setting serves
//! all programs of a machine: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER` and the others. Requests
//! do not wait for the collector: spans that it does not take in time are dropped.

use std::env;

use command::error::{CliError, ErrorAt};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;

use crate::log::BoxedLayer;

/// Either variable names the collector. If none is set, nothing is sent.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// The export of spans. Dropping it sends what is left, for at most five seconds.
pub(crate) struct Spans(Option<SdkTracerProvider>);

impl Spans {
    /// Starts the export if the environment names a collector.
    ///
    /// # Errors
    /// A variable is malformed.
    pub(crate) fn start() -> Result<Spans, CliError> {
        let Some(endpoint) = ENDPOINTS.into_iter().find(|name| env::var_os(name).is_some()) else {
            return Ok(Spans(None));
        };
        // The exporter requires a default crypto provider. This call fails only if there is one already.
        drop(rustls::crypto::ring::default_provider().install_default());
        let exporter = SpanExporter::builder()
            .with_http()
            .build()
            .usage()
            .at(format!("environment variable {endpoint}"))
            .advise("name an OTLP collector's HTTP port, e.g. http://localhost:4318")?;
        let resource = Resource::builder();
        let resource = match env::var_os("OTEL_SERVICE_NAME") {
            Some(_) => resource,
            None => resource.with_service_name("limen"),
        };
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
        Ok(Spans(Some(provider.with_resource(resource.build()).build())))
    }

    /// The layer that takes the spans, and nothing else.
    pub(crate) fn layer(&self) -> Option<BoxedLayer> {
        let provider = self.0.as_ref()?;
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("limen"))
            .with_location(false)
            .with_threads(false)
            .with_target(false);
        Some(layer.with_filter(filter_fn(|metadata| metadata.target() == metrics::SPANS)).boxed())
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        if let Some(provider) = &self.0
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(%error, "cannot send the last spans");
        }
    }
}
