//! The configuration of rustls from the parameters of a URL.

use std::fmt::Display;
use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::query::NamedFile;

/// How the server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    Nothing,
    /// It is signed by a trusted authority.
    Authority,
    /// It is signed by a trusted authority, and valid for this host.
    Host,
}

/// Returns a configuration that trusts the authorities in the file `roots`, or those of the system if no file
/// is named. `own` is the client's certificate and its key; both are given, or neither.
///
/// # Errors
/// A file cannot be used, only one file of `own` is given, or there is no authority to trust.
pub fn client(
    verification: Verification,
    roots: &NamedFile,
    own: Option<[&NamedFile; 2]>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let webpki = match verification {
        Verification::Nothing => None,
        Verification::Authority | Verification::Host => {
            let roots = Arc::new(authorities(roots)?);
            let webpki = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            Some(webpki.build().map_err(|error| error.to_string())?)
        }
    };
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { verification, provider, webpki }));
    let Some([certificate, key]) = own else { return Ok(builder.with_no_client_auth()) };
    match (certificate.path(), key.path()) {
        (Some(_), Some(path)) => {
            let chain = certificates(certificate)?;
            let pem = PrivateKeyDer::from_pem_file(path).map_err(|error| key.wrong(error))?;
            builder.with_client_auth_cert(chain, pem).map_err(|error| certificate.wrong(error))
        }
        (None, None) => Ok(builder.with_no_client_auth()),
        _ => Err(format!("{} and {} must be given together", certificate.parameter, key.parameter)),
    }
}

/// True if a failed handshake would fail again: a certificate is not trusted, or the peers have no protocol
/// in common. False for a network failure, such as a reset by a server that is starting.
pub fn is_rejected(error: &io::Error) -> bool {
    // rustls reports its own errors inside of an io::Error.
    error.get_ref().is_some_and(|inner| inner.is::<Error>())
}

fn authorities(file: &NamedFile) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    if file.path().is_some() {
        for certificate in certificates(file)? {
            store.add(certificate).map_err(|error| file.wrong(error))?;
        }
    } else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if store.is_empty() {
        let name = file.parameter;
        return Err(format!("there is no trusted certificate authority: name a file of them with {name}"));
    }
    Ok(store)
}

fn certificates(file: &NamedFile) -> Result<Vec<CertificateDer<'static>>, String> {
    let Some(path) = file.path() else { return Ok(Vec::new()) };
    let wrong = |error: &dyn Display| file.wrong(error);
    let found = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
    found.collect::<Result<_, _>>().map_err(|error| wrong(&error))
}

#[derive(Debug)]
struct Verifier {
    verification: Verification,
    provider: Arc<CryptoProvider>,
    /// `None` if nothing is verified.
    webpki: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(webpki) = &self.webpki else { return Ok(ServerCertVerified::assertion()) };
        match webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            // The verifier checks the authority before the name, so this error proves that the authority is
            // trusted.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.verification == Verification::Authority => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untrusted_certificate_is_rejected_and_a_reset_is_not() {
        let untrusted = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert!(is_rejected(&io::Error::new(io::ErrorKind::InvalidData, untrusted)));
        assert!(!is_rejected(&io::ErrorKind::ConnectionReset.into()));
        assert!(!is_rejected(&io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof")));
    }
}
