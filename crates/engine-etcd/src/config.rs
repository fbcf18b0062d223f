//! What the URL says: `etcd://[user:password@]host[:2379][,host...]`, with TLS `etcds://`.

use std::fs;
use std::sync::Arc;

use keyspace::OpenError;
use pool::{Host, Params, Secret, Url};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

const PORT: u16 = 2379;

/// A cluster, and how to talk to it.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) login: Option<(String, Secret)>,
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) params: Params,
    /// How many operations a transaction may have, as the server was started (`--max-txn-ops`).
    pub(crate) max_txn_ops: usize,
    /// Whether old revisions are dropped from here.
    pub(crate) compaction: bool,
}

impl Config {
    /// Beside the parameters that all engines know: `cacert`, `cert` and `key` name PEM files for TLS; `max_txn_ops`;
    /// `compaction=off` where somebody else compacts the cluster.
    pub(crate) fn new(url: &Url) -> Result<Self, OpenError> {
        let mut query = url.query.clone();
        let params = Params::take(&mut query).map_err(OpenError::config)?;
        let tls = match url.scheme.as_str() {
            "etcds" => {
                let files = ["cacert", "cert", "key"].map(|name| query.remove(name));
                Some(Arc::new(tls(files)?))
            }
            _ => None,
        };
        let max_txn_ops = match query.remove("max_txn_ops") {
            None => 128,
            Some(text) => text.parse().ok().filter(|ops| (100..=100_000).contains(ops)).ok_or_else(|| {
                OpenError::Config(format!("max_txn_ops={text} is not a number between 100 and 100000"))
            })?,
        };
        let compaction = match query.remove("compaction").as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(other) => {
                return Err(OpenError::Config(format!("compaction={other} is neither on nor off")));
            }
        };
        Params::refuse_rest(&query).map_err(OpenError::config)?;
        if url.hosts.is_empty() {
            return Err(OpenError::Config("an etcd URL names at least one host".to_owned()));
        }
        let hosts =
            url.hosts.iter().map(|Host { name, port }| (name.clone(), port.unwrap_or(PORT))).collect();
        let login = match (&url.user, &url.password) {
            (Some(user), Some(password)) => Some((user.clone(), password.clone())),
            (Some(user), None) => {
                return Err(OpenError::Config(format!("there is no password for the user '{user}'")));
            }
            _ => None,
        };
        Ok(Config { hosts, login, tls, params, max_txn_ops, compaction })
    }
}

fn tls([roots, certificate, key]: [Option<String>; 3]) -> Result<ClientConfig, OpenError> {
    let bad = |what: String| OpenError::Config(what);
    let mut store = RootCertStore::empty();
    match roots {
        Some(path) => {
            for certificate in certificates(&path)? {
                store.add(certificate).map_err(|error| bad(format!("{path}: {error}")))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(error.to_string()))?
        .with_root_certificates(store);
    let mut config = match (certificate, key) {
        (Some(certificate), Some(key)) => {
            let chain = certificates(&certificate)?;
            let pem = PrivateKeyDer::from_pem_file(&key).map_err(|error| bad(format!("{key}: {error}")))?;
            builder
                .with_client_auth_cert(chain, pem)
                .map_err(|error| bad(format!("{certificate}: {error}")))?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(bad("cert and key come together".to_owned())),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(path: &str) -> Result<Vec<CertificateDer<'static>>, OpenError> {
    let bad = |error: &dyn std::fmt::Display| OpenError::Config(format!("{path}: {error}"));
    let bytes = fs::read(path).map_err(|error| bad(&error))?;
    CertificateDer::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(|error| bad(&error))
}
