//! The part of gRPC over HTTP/2 that etcd needs (grpc.io, "gRPC over HTTP2"): calls with one request and one
//! answer, and streams.
//!
//! The thread that uses a connection also drives it: the thread sends a call, waits for the answer and reads
//! it, and no other thread needs to be woken.

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};
use http::{Method, Request};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The server answered with this gRPC status code and message.
    Status(u32, String),
    /// The request was not sent.
    NotSent(String),
    /// No answer arrived, or it cannot be decoded. The request may have been executed.
    Lost(String),
}

impl CallError {
    /// The same error with the address of the server in its message.
    pub(crate) fn at(self, address: &str) -> CallError {
        let named = |message| format!("{address}: {message}");
        match self {
            CallError::Status(status, message) => CallError::Status(status, named(message)),
            CallError::NotSent(message) => CallError::NotSent(named(message)),
            CallError::Lost(message) => CallError::Lost(named(message)),
        }
    }
}

/// gRPC status codes (grpc.io, "Status codes and their use in gRPC").
pub(crate) mod code {
    pub(crate) const INVALID_ARGUMENT: u32 = 3;
    pub(crate) const PERMISSION_DENIED: u32 = 7;
    pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
    pub(crate) const FAILED_PRECONDITION: u32 = 9;
    pub(crate) const OUT_OF_RANGE: u32 = 11;
    pub(crate) const UNIMPLEMENTED: u32 = 12;
    pub(crate) const UNAVAILABLE: u32 = 14;
    pub(crate) const UNAUTHENTICATED: u32 = 16;
}

/// The HTTP/2 flow-control window: the bytes that the server may send before the client acknowledges some of
/// them.
const WINDOW_BYTES: u32 = 64 << 20;
const FRAME_BYTES: u32 = 1 << 20;
/// A longer message is treated as corrupt.
const LONGEST_MESSAGE: usize = 1 << 30;

/// The client's side of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    requests: SendRequest<Bytes>,
    authority: String,
    scheme: &'static str,
    token: Option<HeaderValue>,
}

/// A call that was sent.
#[derive(Debug)]
pub(crate) struct Call(ResponseFuture);

/// A bidirectional stream of messages.
#[derive(Debug)]
pub(crate) struct Stream {
    send: SendStream<Bytes>,
    receive: Receive,
}

#[derive(Debug)]
struct Receive {
    body: RecvStream,
    buffered: BytesMut,
}

impl Channel {
    /// Performs the HTTP/2 handshake, and spawns a task on the runtime that drives the connection.
    pub(crate) async fn open<S>(stream: S, authority: String, scheme: &'static str) -> Result<Self, h2::Error>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut builder = h2::client::Builder::new();
        builder.enable_push(false).initial_window_size(WINDOW_BYTES).max_frame_size(FRAME_BYTES);
        builder.initial_connection_window_size(WINDOW_BYTES);
        let (requests, connection) = builder.handshake(stream).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to etcd ended");
            }
        });
        Ok(Channel { requests, authority, scheme, token: None })
    }

    /// Sets the token that authenticates all further requests.
    pub(crate) fn set_token(&mut self, token: &str) -> Result<(), CallError> {
        let mut token = HeaderValue::from_str(token)
            .map_err(|_| CallError::Lost("the token is not a valid header value".to_owned()))?;
        token.set_sensitive(true);
        self.token = Some(token);
        Ok(())
    }

    /// Sends a request and waits for the answer.
    pub(crate) async fn call<M: Message + Default>(
        &mut self,
        path: &str,
        message: &impl Message,
    ) -> Result<M, CallError> {
        let call = self.start(path, message).await?;
        call.answer().await
    }

    /// Sends a request.
    pub(crate) async fn start(&mut self, path: &str, message: &impl Message) -> Result<Call, CallError> {
        let (response, mut send) = self.request(path).await?;
        send.send_data(frame(message), true).map_err(|error| CallError::Lost(error.to_string()))?;
        Ok(Call(response))
    }

    /// Opens a bidirectional stream and sends a first message.
    pub(crate) async fn stream(&mut self, path: &str, first: &impl Message) -> Result<Stream, CallError> {
        let (response, mut send) = self.request(path).await?;
        send.send_data(frame(first), false).map_err(lost)?;
        let receive = Receive::begin(response).await?;
        Ok(Stream { send, receive })
    }

    async fn request(&mut self, path: &str) -> Result<(ResponseFuture, SendStream<Bytes>), CallError> {
        let not_sent = |error: h2::Error| CallError::NotSent(error.to_string());
        let mut requests = self.requests.clone().ready().await.map_err(not_sent)?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}://{}{path}", self.scheme, self.authority))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            // A member without a leader refuses the request, and cancels a watch (`newStreamInterceptor`,
            // server/etcdserver/api/v3rpc/interceptor.go).
            .header("hasleader", "true")
            .body(())
            .map_err(|error| CallError::NotSent(error.to_string()))?;
        if let Some(token) = &self.token {
            request.headers_mut().insert("token", token.clone());
        }
        requests.send_request(request, false).map_err(not_sent)
    }
}

impl Call {
    pub(crate) async fn answer<M: Message + Default>(self) -> Result<M, CallError> {
        let mut receive = Receive::begin(self.0).await?;
        let message = receive.message().await?;
        // The status follows the message.
        if let Some(message) = message {
            receive.finish().await?;
            return Ok(message);
        }
        Err(CallError::Lost("the answer contains no message".to_owned()))
    }
}

impl Stream {
    pub(crate) fn send(&mut self, message: &impl Message) -> Result<(), CallError> {
        self.send.send_data(frame(message), false).map_err(lost)
    }

    /// The next message. Cancel safe: dropping the future loses no message.
    pub(crate) async fn message<M: Message + Default>(&mut self) -> Result<M, CallError> {
        self.receive.message().await?.ok_or_else(|| CallError::Lost("the stream has ended".to_owned()))
    }
}

impl Receive {
    async fn begin(response: ResponseFuture) -> Result<Self, CallError> {
        let response = response.await.map_err(lost)?;
        if !response.status().is_success() {
            return Err(CallError::Lost(format!(
                "the server answered with HTTP status {}",
                response.status()
            )));
        }
        // An error response carries its status here and has no body.
        status(response.headers())?;
        Ok(Receive { body: response.into_body(), buffered: BytesMut::new() })
    }

    /// The next message; `None` at the end of the stream.
    async fn message<M: Message + Default>(&mut self) -> Result<Option<M>, CallError> {
        loop {
            if let Some(message) = self.take()? {
                return M::decode(message).map(Some).map_err(|error| CallError::Lost(error.to_string()));
            }
            match self.body.data().await {
                Some(data) => {
                    let data = data.map_err(lost)?;
                    self.body.flow_control().release_capacity(data.len()).map_err(lost)?;
                    self.buffered.extend_from_slice(&data);
                }
                None => {
                    self.finish().await?;
                    return Ok(None);
                }
            }
        }
    }

    async fn finish(&mut self) -> Result<(), CallError> {
        while let Some(data) = self.body.data().await {
            let data = data.map_err(lost)?;
            self.body.flow_control().release_capacity(data.len()).map_err(lost)?;
        }
        match self.body.trailers().await.map_err(lost)? {
            Some(trailers) => status(&trailers),
            None => Ok(()),
        }
    }

    /// Takes a complete message from the buffer: one byte (0: not compressed), its length, its bytes.
    fn take(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some((head, rest)) = self.buffered.split_first_chunk::<5>() else { return Ok(None) };
        let [compressed, length @ ..] = *head;
        let length = u32::from_be_bytes(length) as usize;
        if compressed != 0 || length > LONGEST_MESSAGE {
            return Err(CallError::Lost("a message is compressed or too long".to_owned()));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let _head = self.buffered.split_to(5);
        Ok(Some(self.buffered.split_to(length).freeze()))
    }
}

fn lost(error: h2::Error) -> CallError {
    CallError::Lost(error.to_string())
}

fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(length + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    frame.put(message.encode_to_vec().as_slice());
    frame.freeze()
}

/// Checks the status in the headers. A missing status means success.
fn status(headers: &HeaderMap) -> Result<(), CallError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status").map(str::parse) {
        None | Some(Ok(0)) => Ok(()),
        Some(Ok(code)) => Err(CallError::Status(code, text("grpc-message").unwrap_or_default().to_owned())),
        Some(Err(_)) => Err(CallError::Lost("the gRPC status is not a number".to_owned())),
    }
}
