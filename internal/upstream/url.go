package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/textproto"
	"strings"
	"sync"
	"time"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// URLOptions configures URL. A nil *URLOptions means all defaults.
type URLOptions struct {
	Client *http.Client // its Timeout is not used; default http.DefaultClient
	// Withheld are headers of the requestor's request that its server is not shown, such as its
	// authorization.
	Withheld []string
	Logger   *slog.Logger // default: discards
}

// Remote runs requests on a server at a URL, each in a session of its own.
type Remote struct {
	endpoint string
	client   *http.Client
	withheld []string
	log      *slog.Logger
	tools    *toolSupport
	ending   sync.WaitGroup // sessions whose DELETE nobody waits for
}

// URL returns a runner on a server that speaks Streamable HTTP. A request carries the
// headers of the requestor's own, as it would have if it had not been run as a task: with
// them, its authorization, unless that is withheld. Close ends the runner.
func URL(endpoint string, opts *URLOptions) *Remote {
	u := &Remote{endpoint: endpoint, tools: newToolSupport(), log: slog.New(slog.DiscardHandler)}
	if opts != nil {
		u.client, u.withheld = opts.Client, opts.Withheld
		if opts.Logger != nil {
			u.log = opts.Logger
		}
	}
	return u
}

// How a server is reached again while it runs a task of its own.
const (
	minReconnect = 500 * time.Millisecond
	maxReconnect = 30 * time.Second
)

// Run implements engine.Runner.
func (u *Remote) Run(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	r := &run{job: job, remote: job.Remote, tools: u.tools}
	for delay := minReconnect; ; delay = min(2*delay, maxReconnect) {
		heard := r.heard
		outcome, err := u.attempt(ctx, r)
		if r.remote == "" || !connectionLost(ctx, err) || errors.Is(err, session.ErrDenied) {
			return outcome, u.explain(ctx, err)
		}
		u.log.Warn("the connection to the server is lost; its task is looked for again", "error", err)
		if r.heard > heard {
			delay = minReconnect
		}
		if err := pause(ctx, delay); err != nil {
			return task.Outcome{}, err
		}
	}
}

// attempt goes on with a run in a new session.
func (u *Remote) attempt(ctx context.Context, r *run) (task.Outcome, error) {
	s, err := u.connect(ctx, r.job.Caller, r.job.Line)
	if err != nil {
		return task.Outcome{}, err
	}
	defer u.ending.Go(func() { _ = s.Close() })
	return r.on(ctx, s)
}

// connect opens a session for a task's line, or for none. The server may send questions and
// notifications on the GET stream, too.
func (u *Remote) connect(ctx context.Context, caller *engine.Caller, line engine.Line) (*session.Session, error) {
	transport := &session.HTTP{URL: u.endpoint, Client: u.client, Listen: line != nil}
	if caller != nil {
		transport.Header = passedOn(caller.Header)
		for _, name := range u.withheld {
			transport.Header.Del(name)
		}
	}
	opts := &session.Options{
		OnNotification: func(method string, params json.RawMessage) {
			if method == protocol.MethodToolsChanged {
				u.tools.changed()
			}
			notify(line, method, params)
		},
		OnRequest: func(ctx context.Context, method string, params json.RawMessage) session.Answer {
			return ask(ctx, nil, line, method, params) // the session ends with the task
		},
	}
	if line != nil {
		opts.Capabilities = caller.Capabilities()
	}
	s, err := session.Connect(ctx, transport, opts)
	if err == nil {
		setLevel(ctx, s, caller)
	}
	return s, err
}

// Tools returns what the server itself says of each tool's support for tasks; a tool that is
// not in it has none.
func (u *Remote) Tools(ctx context.Context) (map[string]protocol.TaskSupport, error) {
	if tools, ok := u.tools.cached(); ok {
		return tools, nil
	}
	s, err := u.connect(ctx, nil, nil)
	if err != nil {
		return nil, u.explain(ctx, err)
	}
	defer u.ending.Go(func() { _ = s.Close() })
	tools, err := u.tools.get(ctx, s, "")
	return tools, u.explain(ctx, err)
}

// Close waits until the sessions that were used are ended.
func (u *Remote) Close() error {
	u.ending.Wait()
	return nil
}

func (u *Remote) explain(ctx context.Context, err error) error {
	if !connectionLost(ctx, err) {
		return err
	}
	u.log.Error("a request was not answered by the server", "error", err)
	switch {
	case errors.Is(err, session.ErrDenied): // a task adopted after a restart has no authorization
		return protocol.Errorf(protocol.CodeInternalError, "The server refused the request for want of authorization")
	case errors.Is(err, session.ErrLost):
		return protocol.Errorf(protocol.CodeInternalError, "The server ended the session before it answered")
	}
	return protocol.Errorf(protocol.CodeInternalError, "The server could not be reached, or the connection to it was lost before it answered")
}

// passedOn returns the headers of a requestor's request that belong on one made for it: all
// but those that are about the connection, the body or the session.
func passedOn(header http.Header) http.Header {
	out := http.Header{}
	connection := textproto.MIMEHeader(header)["Connection"]
	for name, values := range header {
		switch {
		case strings.HasPrefix(name, "Mcp-"), strings.HasPrefix(name, "Content-"), strings.HasPrefix(name, "Accept"), strings.HasPrefix(name, "If-"), strings.HasPrefix(name, "Sec-"):
		case perHop[name], named(connection, name):
		default:
			out[name] = values
		}
	}
	return out
}

// perHop are headers of a connection (RFC 9110 7.6.1), and of a request that is not repeated.
var perHop = map[string]bool{
	"Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Proxy-Connection": true, "Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Host": true, "Last-Event-Id": true, "Origin": true, "Referer": true, "Expect": true, "Range": true,
}

func named(connection []string, name string) bool {
	for _, list := range connection {
		for option := range strings.SplitSeq(list, ",") {
			if textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(option)) == name {
				return true
			}
		}
	}
	return false
}
