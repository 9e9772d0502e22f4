package wire

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/receiver"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// TransportOptions configures Transport.
type TransportOptions struct {
	// Principal is the one requestor at the other end (requirements C.10).
	Principal task.Principal
	// Session names the session, uniquely in this process. Default: at random.
	Session string
	// Grace is how long the plain calls that go on without their client have to end, once it has
	// gone. Default 0: none.
	Grace time.Duration
}

// Transport returns a server's transport whose connection answers task messages itself and
// leaves the rest to the server.
func Transport(inner mcp.Transport, r *receiver.Receiver, opts TransportOptions) mcp.Transport {
	return &transport{inner: inner, receiver: r, opts: opts}
}

// HostTransport is Transport for a client that hosts tasks: the server is the requestor, and
// tasks are declared in the client's initialize request.
func HostTransport(inner mcp.Transport, r *receiver.Receiver, opts TransportOptions) mcp.Transport {
	return &transport{inner: inner, receiver: r, opts: opts, host: true}
}

type transport struct {
	inner    mcp.Transport
	receiver *receiver.Receiver
	opts     TransportOptions
	host     bool
}

func (t *transport) Connect(ctx context.Context) (mcp.Connection, error) {
	inner, err := t.inner.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{
		Connection: inner,
		receiver:   t.receiver,
		host:       t.host,
		from: receiver.Requestor{
			Caller: engine.Caller{
				Principal: t.opts.Principal, Session: cmp.Or(t.opts.Session, rand.Text()), Identified: true,
			},
			Connection: true,
		},
		rewrites: map[jsonrpc.ID]func(json.RawMessage) json.RawMessage{},
		waits:    newWaits(),
		untaken:  map[jsonrpc.ID]*receiver.Plain{},
		lines:    newLines(),
		grace:    t.opts.Grace,
	}
	c.ctx, c.stop = context.WithCancel(context.WithoutCancel(ctx))
	if c.receiver.Tickets() && !c.host {
		c.incoming = make(chan incoming)
		c.answers.Go(c.pump)
	}
	return c, nil
}

// ownScope is that of all calls on a connection with waits of its own.
const ownScope = "connection"

// conn is one session. It lacks the SDK's unexported sessionUpdated, whose only use on a
// stdio connection is to refuse batches.
type conn struct {
	mcp.Connection
	receiver *receiver.Receiver
	host     bool // this side is the client
	waits    *waits
	lines    *lines
	grace    time.Duration
	incoming chan incoming // what Read returns, if it is not the connection's alone; else nil

	ctx     context.Context // of the calls being answered here
	stop    context.CancelFunc
	answers sync.WaitGroup
	speak   sync.Once // opens the outlet

	mu       sync.Mutex
	from     receiver.Requestor
	tasks    bool // tasks were declared
	tickets  *receiver.TicketSession
	rewrites map[jsonrpc.ID]func(json.RawMessage) json.RawMessage

	untaken    map[jsonrpc.ID]*receiver.Plain // plain calls that have no answer yet
	initialize jsonrpc.ID                     // of a host's initialize request
}

// Read returns the next message that is for the server.
func (c *conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		msg, ours, err := c.next(ctx)
		if err != nil {
			c.linger()
			c.stop()
			return nil, err
		}
		if ours {
			return msg, nil
		}
		switch msg := msg.(type) {
		case *jsonrpc.Request:
			if c.take(msg) {
				continue
			}
		case *jsonrpc.Response:
			if id, ok := msg.ID.Raw().(string); ok && receiver.IsAnswer(protocol.AppendString(nil, id)) {
				c.accept(id, msg)
				continue
			}
			if c.host {
				c.negotiated(msg)
			}
		}
		return msg, nil
	}
}

// incoming is a message for the server, or why there are no more.
type incoming struct {
	msg  jsonrpc.Message
	ours bool // it is not the client's
	err  error
}

func (c *conn) next(ctx context.Context) (msg jsonrpc.Message, ours bool, err error) {
	if c.incoming == nil {
		msg, err = c.Connection.Read(ctx)
		return msg, false, err
	}
	select {
	case in := <-c.incoming:
		return in.msg, in.ours, in.err
	case <-c.ctx.Done():
		return nil, false, c.ctx.Err()
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

// pump reads the client's messages, so that those of ours can come between.
func (c *conn) pump() {
	for {
		msg, err := c.Connection.Read(c.ctx)
		select {
		case c.incoming <- incoming{msg: msg, err: err}:
		case <-c.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// inject has the server read a message of ours.
func (c *conn) inject(msg jsonrpc.Message) {
	select {
	case c.incoming <- incoming{msg: msg, ours: true}:
	case <-c.ctx.Done():
	}
}

// accept takes an answer to a question that a task asked. One that is refused has no answer
// of its own on a connection: a log message says what is wrong with it.
func (c *conn) accept(id string, resp *jsonrpc.Response) {
	c.mu.Lock()
	from := c.from
	c.mu.Unlock()
	answer := task.Outcome{Result: resp.Result}
	if resp.Error != nil {
		answer = task.Outcome{Error: errorObject(resp.Error)}
	}
	c.answers.Go(func() {
		if refused, ok := c.receiver.Accept(c.ctx, &from, id, answer); !ok {
			_ = c.send(receiver.Complaint(id, refused.Error)) // fails only when nobody reads any more
		}
	})
}

func errorObject(err error) json.RawMessage {
	wire := &jsonrpc.Error{Code: protocol.CodeInternalError, Message: err.Error()}
	if as, ok := errors.AsType[*jsonrpc.Error](err); ok {
		wire = as
	}
	return (&protocol.Error{Code: wire.Code, Message: wire.Message, Data: wire.Data}).JSON()
}

// send sends a message of ours.
func (c *conn) send(m receiver.Message) error {
	req := &jsonrpc.Request{Method: m.Method, Params: m.Params}
	if m.ID != "" {
		id, err := jsonrpc.MakeID(m.ID)
		if err != nil {
			return err
		}
		req.ID = id
	}
	return c.Connection.Write(c.ctx, req)
}

// speakUp sends what the session's tasks have to say outside of a call.
func (c *conn) speakUp() {
	c.mu.Lock()
	from := c.from
	c.mu.Unlock()
	outlet := c.receiver.Outlet(&from)
	defer outlet.Close()
	for {
		m, err := outlet.Next(c.ctx)
		if err != nil || c.send(m) != nil {
			return
		}
	}
}

// take reports whether a request is dealt with here.
func (c *conn) take(req *jsonrpc.Request) bool {
	switch {
	case req.Method == protocol.MethodInitialized:
		c.listened()
		return false
	case !req.IsCall():
		return c.receiver.Hears(req.Method) || req.Method == protocol.MethodCancelled && c.cancelled(protocol.Get(req.Params, "requestId"))
	case req.Method == protocol.MethodInitialize:
		params := req.Params
		c.onResult(req.ID, func(result json.RawMessage) json.RawMessage {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.from.Initialize = params
			rewritten, tasks := c.receiver.Negotiate(&c.from, result)
			c.tasks, c.tickets = tasks, c.receiver.Ticketing(&c.from, result)
			return c.tickets.Instruct(rewritten)
		})
		return false
	}
	c.mu.Lock()
	tasks, tickets, from := c.tasks, c.tickets, c.from
	c.mu.Unlock()
	if !tasks && tickets == nil {
		return false
	}
	if req.Method == protocol.MethodSetLevel {
		if level, ok := protocol.Unquote(protocol.Get(req.Params, "level")); ok {
			c.mu.Lock()
			c.from.LogLevel = level
			c.mu.Unlock()
		}
		return false
	}
	if req.Method == protocol.MethodToolsList {
		c.onResult(req.ID, func(result json.RawMessage) json.RawMessage {
			if tasks {
				result = c.receiver.DeclareTools(result)
			}
			return tickets.List(result)
		})
		return false
	}
	m := protocol.NewCall(protocol.Marshal(req.ID.Raw()), req.Method, req.Params)
	if tickets != nil && m.Method == protocol.MethodToolsCall {
		switch take := c.receiver.Take(c.ctx, &from, tickets, m); {
		case take.Call != nil:
			c.carry(req.ID, take.Call)
			return false
		case take.Do != nil:
			ctx, onGiveUp, end := c.waits.beginTask(c.ctx, ownScope, m.ID)
			c.answers.Go(func() {
				defer end()
				c.collect(ctx, req.ID, take, onGiveUp)
			})
			return true
		}
	}
	if !tasks {
		return false
	}
	if c.receiver.Takes(m) {
		tickets.UsesTasks()
	} else {
		if call := c.receiver.Plain(&from, m); call != nil {
			c.plain(req, call)
		}
		return false
	}
	ctx, end := c.waits.begin(c.ctx, ownScope, m.ID)
	c.answers.Go(func() {
		defer end()
		a, err := c.answer(ctx, &from, m)
		if err != nil {
			return // the call was cancelled, or the connection is closed
		}
		_ = c.Connection.Write(c.ctx, response(req.ID, a)) // fails only when nobody reads any more
	})
	return true
}

// cancelled reports whether a call that the client gave up is dealt with here.
func (c *conn) cancelled(id json.RawMessage) bool {
	if c.waits.cancel(ownScope, id) {
		return true
	}
	var raw any
	if json.Unmarshal(id, &raw) != nil {
		return false
	}
	key, err := jsonrpc.MakeID(raw)
	if err != nil {
		return false
	}
	l := c.lines.get(key)
	switch {
	case l == nil:
		return false
	case !l.call.Keeps():
		return l.giveUp()
	}
	l.lose() // before a repeat can come
	return true
}

// collect answers a call that waits for a task's outcome.
func (c *conn) collect(ctx context.Context, id jsonrpc.ID, take receiver.Take, onGiveUp func(func())) {
	collecting, a := take.Do(c.ctx)
	if collecting == nil {
		onGiveUp(nil)
		_ = c.Connection.Write(c.ctx, response(id, a)) // fails only when nobody reads any more
		return
	}
	defer collecting.Close()
	onGiveUp(func() { collecting.GiveUp(ctx) })
	a, err := c.await(ctx, collecting)
	if err != nil || c.Connection.Write(c.ctx, response(id, a)) != nil {
		collecting.Lost(ctx)
		return
	}
	collecting.Delivered(ctx)
}

// plain hands on a call that runs plainly, whose handler may have the requestor run tasks: it
// speaks on the session's own stream.
func (c *conn) plain(req *jsonrpc.Request, call *receiver.Plain) {
	headers := http.Header{}
	call.Name(headers)
	req.Extra = &mcp.RequestExtra{Header: headers}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.untaken[req.ID] = call
}

// negotiated learns from the answer to a host's initialize request whether there are tasks:
// the server decides on the revision.
func (c *conn) negotiated(resp *jsonrpc.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if resp.ID == c.initialize && resp.Error == nil {
		version, _ := protocol.Unquote(protocol.Get(resp.Result, "protocolVersion"))
		c.tasks = version == protocol.Version20251125
	}
}

// listened opens the session's own stream, now that it is initialized.
func (c *conn) listened() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tasks {
		c.speak.Do(func() { c.answers.Go(c.speakUp) })
	}
}

// answer answers a call, and until it can, for tasks/result, sends what the task has to say.
func (c *conn) answer(ctx context.Context, from *receiver.Requestor, m *protocol.Message) (receiver.Answer, error) {
	if m.Method != protocol.MethodTasksResult {
		return c.receiver.Handle(ctx, from, m)
	}
	waiting, a := c.receiver.Result(ctx, from, m)
	if waiting == nil {
		return a, nil
	}
	defer waiting.Close()
	return c.await(ctx, waiting)
}

// await sends what is to be sent before the answer, which it returns.
func (c *conn) await(ctx context.Context, waiting waiter) (receiver.Answer, error) {
	for {
		message, a, last, err := waiting.Next(ctx)
		if err != nil || last {
			return a, err
		}
		if err := c.send(message); err != nil {
			return receiver.Answer{}, err
		}
	}
}

func (c *conn) onResult(id jsonrpc.ID, change func(json.RawMessage) json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rewrites[id] = change
}

// Write sends a message of this side, with those edited that declare tasks.
func (c *conn) Write(ctx context.Context, msg jsonrpc.Message) error {
	if req, ok := msg.(*jsonrpc.Request); ok && c.host {
		switch req.Method {
		case protocol.MethodInitialize:
			edited := *req
			edited.Params = c.receiver.Declare(req.Params)
			c.mu.Lock()
			c.initialize = req.ID
			c.mu.Unlock()
			msg = &edited
		case protocol.MethodInitialized:
			defer c.listened()
		}
	}
	if c.hears(msg) {
		return nil
	}
	if resp, ok := msg.(*jsonrpc.Response); ok {
		c.mu.Lock()
		change := c.rewrites[resp.ID]
		delete(c.rewrites, resp.ID)
		call := c.untaken[resp.ID]
		delete(c.untaken, resp.ID)
		c.mu.Unlock()
		if call != nil {
			call.Done()
		}
		if change != nil && resp.Error == nil {
			edited := *resp
			edited.Result = change(resp.Result)
			msg = &edited
		}
	}
	return c.Connection.Write(ctx, msg)
}

// Close ends the calls being answered here, and the connection.
func (c *conn) Close() error {
	c.stop()
	err := c.Connection.Close()
	c.answers.Wait()
	calls, _ := c.lines.all()
	for _, l := range calls {
		l.close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.untaken {
		call.Done()
	}
	return err
}

func response(id jsonrpc.ID, a receiver.Answer) *jsonrpc.Response {
	if a.Error == nil {
		return &jsonrpc.Response{ID: id, Result: a.Result}
	}
	wire := &jsonrpc.Error{}
	if err := json.Unmarshal(a.Error, wire); err != nil {
		return &jsonrpc.Response{ID: id, Error: errors.New("malformed error object")}
	}
	return &jsonrpc.Response{ID: id, Error: wire}
}
