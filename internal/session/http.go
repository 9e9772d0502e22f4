package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/protocol"
)

// maxMessage bounds one message from a server, in bytes.
const maxMessage = 64 << 20

const (
	versionHeader   = "Mcp-Protocol-Version"
	sessionIDHeader = "Mcp-Session-Id"
)

// HTTP is a client's transport of MCP's Streamable HTTP. Answers may be JSON or streams; a
// stream that drops is resumed where the server numbers its events. A request may take any
// time. Each Connect makes a session of its own.
//
// It adds to the SDK's transport what that does only for an mcp.Client: the protocol version
// header, and the stream of what the server sends by itself.
type HTTP struct {
	URL    string
	Client *http.Client // its Timeout is not used; default http.DefaultClient
	// Header is added to each request that goes to URL's host.
	Header http.Header
	// Listen opens the GET stream once the session is initialized. A server may send
	// requests and notifications there that belong to no request of ours.
	Listen bool
	// SDK, if set, is the SDK's own transport to take URL, Client, Listen and everything else
	// from, such as its OAuthHandler.
	SDK *mcp.StreamableClientTransport
}

// HTTPTransport returns an HTTP that listens.
func HTTPTransport(url string, client *http.Client) mcp.Transport {
	return &HTTP{URL: url, Client: client, Listen: true}
}

// Connect implements mcp.Transport. It does not reach out to the server yet.
func (t *HTTP) Connect(ctx context.Context) (mcp.Connection, error) {
	base := mcp.StreamableClientTransport{Endpoint: t.URL, HTTPClient: t.Client, DisableStandaloneSSE: !t.Listen}
	if t.SDK != nil {
		base = *t.SDK
	}
	u, err := url.Parse(base.Endpoint)
	if err != nil {
		return nil, errors.New("the URL of the server is malformed") // not which: it may have secrets
	}
	client := http.Client{}
	if base.HTTPClient != nil {
		client = *base.HTTPClient
	}
	tripper := &tripper{base: client.Transport, scheme: u.Scheme, host: u.Host, header: t.Header}
	if base.OAuthHandler == nil { // which needs the URL as it is
		tripper.secret = u
		base.Endpoint = WithoutSecrets(u).String()
	}
	if tripper.base == nil {
		tripper.base = http.DefaultTransport
	}
	client.Transport, client.Timeout = tripper, 0
	base.HTTPClient = &client
	if base.MaxEventSize == 0 {
		base.MaxEventSize = maxMessage
	}
	inner, err := base.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &httpConn{
		Connection: inner,
		url:        base.Endpoint,
		client:     &client,
		tripper:    tripper,
		listen:     !base.DisableStandaloneSSE,
		incoming:   make(chan jsonrpc.Message),
		failed:     make(chan struct{}),
		heard:      make(chan struct{}),
		calls:      map[jsonrpc.ID]*exchange{},
	}
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx))
	c.work.Go(c.pump)
	return c, nil
}

type httpConn struct {
	mcp.Connection
	url     string
	client  *http.Client
	tripper *tripper
	listen  bool

	ctx    context.Context // of the connection
	cancel context.CancelFunc
	work   sync.WaitGroup

	incoming chan jsonrpc.Message // from answers and from the GET stream
	err      error                // set before failed is closed
	failed   chan struct{}

	initialize atomic.Pointer[jsonrpc.ID] // of the initialize request
	listening  sync.Once
	heard      chan struct{} // closed when the first GET is answered
	hearOnce   sync.Once

	withdrawals sync.WaitGroup

	mu      sync.Mutex
	closing bool
	calls   map[jsonrpc.ID]*exchange // not answered yet
}

// pump reads the answers.
func (c *httpConn) pump() {
	for {
		msg, err := c.Connection.Read(c.ctx)
		if err != nil {
			c.err = c.explain(err)
			close(c.failed)
			return
		}
		if resp, ok := msg.(*jsonrpc.Response); ok {
			c.finish(resp.ID)
			if id := c.initialize.Load(); id != nil && *id == resp.ID && resp.Error == nil {
				if version, ok := protocol.Unquote(protocol.Get(resp.Result, "protocolVersion")); ok {
					c.tripper.version.Store(&version)
				}
			}
		}
		if !c.deliver(msg) {
			c.err = c.ctx.Err()
			close(c.failed)
			return
		}
	}
}

func (c *httpConn) deliver(msg jsonrpc.Message) bool {
	select {
	case c.incoming <- msg:
		return true
	case <-c.ctx.Done():
		return false
	}
}

func (c *httpConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case msg := <-c.incoming:
		return msg, nil
	case <-c.failed:
		return nil, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write sends a message. It does not wait for the server to take a call, which over HTTP
// may be as long as the call itself: what goes wrong with one comes as its response.
func (c *httpConn) Write(ctx context.Context, msg jsonrpc.Message) error {
	req, _ := msg.(*jsonrpc.Request)
	if req != nil && req.IsCall() {
		if req.Method == protocol.MethodInitialize {
			c.initialize.Store(&req.ID)
		}
		return c.call(ctx, req)
	}
	if req != nil && req.Method == protocol.MethodCancelled {
		return c.withdraw(ctx, req)
	}
	if err := c.Connection.Write(ctx, msg); err != nil {
		return c.explain(err)
	}
	if c.listen && req != nil && req.Method == protocol.MethodInitialized {
		defer c.awaitListening()
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ctx.Err() == nil {
			c.listening.Do(func() { c.work.Go(c.listenOn) })
		}
	}
	return nil
}

// listenPatience is how long a session waits for its GET stream to be open: a server that
// answers calls with JSON has no other way to ask something, and may not try twice.
const listenPatience = 100 * time.Millisecond

func (c *httpConn) awaitListening() {
	timer := time.NewTimer(listenPatience)
	defer timer.Stop()
	select {
	case <-c.heard:
	case <-timer.C:
	case <-c.ctx.Done():
	}
}

func (c *httpConn) explain(err error) error {
	switch {
	case c.tripper.lost.Load():
		return fmt.Errorf("%w: %w", ErrLost, err)
	case c.tripper.denied.Load():
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return err
}

// Close ends the session with DELETE. Before that it waits, for a bounded time, until calls that
// were withdrawn have stopped: an SDK server's answer to DELETE waits for its handlers.
func (c *httpConn) Close() error {
	c.mu.Lock()
	c.closing = true
	c.mu.Unlock()
	c.withdrawals.Wait()
	err := c.Connection.Close()
	c.mu.Lock()
	c.cancel()
	c.mu.Unlock()
	c.work.Wait()
	if c.tripper.lost.Load() {
		return nil // there was nothing left to end
	}
	return err
}

// tripper adds the headers that belong on every request, and sees a session that is lost.
type tripper struct {
	base    http.RoundTripper
	scheme  string
	host    string
	header  http.Header
	secret  *url.URL // of which those above only know what has no secrets; nil if they know it all
	version atomic.Pointer[string]
	lost    atomic.Bool // the last answer to a message was 404
	denied  atomic.Bool // the last answer to a message was 401 or 403
}

func (t *tripper) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if version := t.version.Load(); version != nil && req.Header.Get(versionHeader) == "" {
		req.Header.Set(versionHeader, *version)
	}
	t.reveal(req)
	if req.URL.Host == t.host && req.URL.Scheme == t.scheme { // a redirect elsewhere must not see credentials
		for name, values := range t.header {
			if req.Header.Get(name) == "" {
				req.Header[http.CanonicalHeaderKey(name)] = values
			}
		}
	}
	resp, err := t.base.RoundTrip(req)
	if e, ok := req.Context().Value(exchangeKey{}).(*exchange); ok && err == nil && resp.StatusCode < 300 {
		e.reached.Store(true)
	}
	if err == nil && req.Method == http.MethodPost {
		t.lost.Store(resp.StatusCode == http.StatusNotFound && req.Header.Get(sessionIDHeader) != "")
		t.denied.Store(resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden)
		resp = unrefused(req, unlimited(resp))
	}
	return resp, err
}

func isEventStream(resp *http.Response) bool {
	media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(media), "text/event-stream")
}
