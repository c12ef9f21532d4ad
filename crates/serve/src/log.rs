//! The log: lines of the server under a filter that can change, and lines of the audit log at any level.

use std::sync::OnceLock;

use engine::{Error, Result};
use tracing_subscriber::filter::{EnvFilter, FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::{Layer, Registry, reload};

use crate::audit;
use crate::config::{LogFormat, ServeConfig};

/// The filter of the log of this process.
static FILTER: OnceLock<Filter> = OnceLock::new();

/// The filter of a log.
pub struct Filter(reload::Handle<EnvFilter, Registry>);

impl Filter {
    fn replace(&self, text: &str) -> Result<()> {
        let new = filter(text)?;
        self.0.reload(new).map_err(|error| Error::config(format!("the log filter cannot be replaced: {error}")))
    }

    /// Makes it the one that [`set_filter`] replaces, if it is the first.
    pub fn keep(self) {
        let _ = FILTER.set(self);
    }
}

fn filter(text: &str) -> Result<EnvFilter> {
    EnvFilter::try_new(text)
        .map_err(|e| Error::config(format!("log = {text:?}: {e}; write it like info or warn,serve=debug")))
}

type Layers = Box<dyn Layer<Registry> + Send + Sync>;

/// The layers of a log, and its filter.
pub fn layers<W>(config: &ServeConfig, writer: W, colours: bool) -> Result<(Layers, Filter)>
where
    W: for<'a> MakeWriter<'a> + Clone + Send + Sync + 'static,
{
    let (changeable, handle) = reload::Layer::new(filter(&config.log)?);
    let lines = || -> Layers {
        let lines = tracing_subscriber::fmt::layer().with_writer(writer.clone()).with_ansi(colours);
        match config.log_format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.json().boxed(),
        }
    };
    let all_but_audit = filter_fn(|about| about.target() != audit::TARGET);
    let only_audit = Targets::new().with_target(audit::TARGET, tracing::Level::INFO);
    let both = lines().with_filter(changeable.and(all_but_audit)).and_then(lines().with_filter(only_audit));
    Ok((both.boxed(), Filter(handle)))
}

/// Replaces the filter of the log. A program that started no log of ours has its own.
pub fn set_filter(text: &str) -> Result<()> {
    match FILTER.get() {
        Some(own) => own.replace(text),
        None => filter(text).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tracing_subscriber::prelude::*;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_audit_log_is_written_at_any_level_and_the_filter_changes() {
        let written = Lines::default();
        let config = ServeConfig { log: "off".into(), ..ServeConfig::default() };
        let own = written.clone();
        let (layers, filter) = layers(&config, move || own.clone(), false).unwrap();
        let text = || String::from_utf8(std::mem::take(&mut *written.0.lock())).unwrap();
        tracing::subscriber::with_default(Registry::default().with(layers), || {
            tracing::error!("nobody sees this");
            tracing::info!(target: audit::TARGET, key = "a", "admin action");
            let seen = text();
            assert!(seen.contains("admin action") && !seen.contains("nobody") && seen.lines().count() == 1, "{seen}");
            filter.replace("warn").unwrap();
            tracing::warn!("seen");
            tracing::info!("not seen");
            tracing::info!(target: audit::TARGET, "once");
            let seen = text();
            assert_eq!(seen.lines().count(), 2, "{seen}");
            assert!(filter.replace("=nonsense=").is_err() && set_filter("=nonsense=").is_err());
        });
    }
}
