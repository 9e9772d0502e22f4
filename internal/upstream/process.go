package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// ProcessOptions configures Process. A nil *ProcessOptions means all defaults.
type ProcessOptions struct {
	// Processes is the most whose tasks work at a time; default 4. Tasks that wait for input
	// may have 16 times as many beside.
	Processes int
	Logger    *slog.Logger // gets the processes' stderr, line by line; default: discards
}

// Processes runs requests in child processes that speak stdio, one request per process at a
// time: stdio cannot tell which call a server's question belongs to.
type Processes struct {
	path    string
	args    []string
	log     *slog.Logger
	tools   *toolSupport
	listing chan struct{} // held by Tools
	slots   slots         // held while a process runs a task, and until it is gone once it is discarded

	mu     sync.Mutex
	closed bool
	idle   []*process
	all    map[*process]struct{}
	ending sync.WaitGroup
}

type process struct {
	session *session.Session
	client  client // the only one it is used for
	current atomic.Pointer[use]
}

// client is whose requests a process runs, and what it was told of them. What a call leaves
// behind in a process may still ask and tell when the call is over: nobody else may hear that.
type client struct {
	principal    task.Principal
	session      string // if the principal does not tell requestors apart
	capabilities string // the tools may depend on these
	logLevel     string
}

func clientOf(job *engine.Job) client {
	c := client{principal: job.Ref.Principal, capabilities: string(job.Caller.Capabilities())}
	if job.Caller != nil {
		c.logLevel = job.Caller.LogLevel
		if !job.Caller.Identified {
			c.session = job.Caller.Session
		}
	}
	return c
}

// isStranger reports whether nothing tells a job's requestor from others: whoever comes next
// would get its process.
func isStranger(job *engine.Job) bool {
	return job.Caller == nil || !job.Caller.Identified && job.Caller.Session == ""
}

// Stats is the use of a pool at one moment.
type Stats struct {
	Limit  int // tasks that may work at a time
	Busy   int // processes whose task works; for a while more than Limit when answers come
	Input  int // processes whose task waits for input
	Idle   int // processes that are kept for the next task
	Queued int // tasks that wait for a process
}

// Stats returns the use of the pool.
func (p *Processes) Stats() Stats {
	s := Stats{Limit: p.slots.limit}
	s.Busy, s.Input, s.Queued = p.slots.use()
	p.mu.Lock()
	defer p.mu.Unlock()
	s.Idle = len(p.idle)
	return s
}

// use is what a process is used for.
type use struct {
	line engine.Line   // the job's
	over chan struct{} // closed when the job has ended
}

// Process returns a runner on a pool of processes of one command, which are started as they
// are needed, kept, and replaced when they have died. The error says that there is no such
// command. Close ends them.
func Process(command []string, opts *ProcessOptions) (*Processes, error) {
	if len(command) == 0 {
		return nil, errors.New("the command is empty")
	}
	path, err := exec.LookPath(command[0])
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("there is no command %q; install it, or give its path", command[0])
	}
	if err != nil {
		return nil, fmt.Errorf("cannot run %q: %w", command[0], err)
	}
	var o ProcessOptions
	if opts != nil {
		o = *opts
	}
	if o.Processes <= 0 {
		o.Processes = 4
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Processes{
		path: path, args: command, log: o.Logger,
		tools:   newToolSupport(),
		listing: make(chan struct{}, 1),
		slots:   slots{limit: o.Processes},
		all:     map[*process]struct{}{},
	}, nil
}

// Run implements engine.Runner.
func (p *Processes) Run(ctx context.Context, job *engine.Job) (task.Outcome, error) {
	r := &run{job: job, remote: job.Remote, tools: p.tools}
	outcome, err := p.attempt(ctx, r)
	if r.remote != "" && connectionLost(ctx, err) && !errors.Is(err, session.ErrClosed) {
		outcome, err = p.attempt(ctx, r) // a server may keep its tasks
	}
	return outcome, p.explain(ctx, err)
}

// attempt goes on with a run in a process.
func (p *Processes) attempt(ctx context.Context, r *run) (task.Outcome, error) {
	proc, err := p.acquire(ctx, r.job)
	if err != nil {
		return task.Outcome{}, err
	}
	over := make(chan struct{})
	proc.current.Store(&use{line: &slotLine{Line: r.job.Line, slots: &p.slots}, over: over})
	outcome, err := r.on(ctx, proc.session)
	proc.current.Store(nil)
	asking := proc.session.Asked() // what has taken current is counted by now
	close(over)
	if ctx.Err() != nil || asking || isStranger(r.job) {
		p.discard(proc) // it may still be at it, and does not say when it is done
	} else {
		p.release(proc)
	}
	return outcome, err
}

// Tools returns what the server itself says of each tool's support for tasks; a tool that is
// not in it has none. It waits for no task: it may use a process beyond the limit.
func (p *Processes) Tools(ctx context.Context) (map[string]protocol.TaskSupport, error) {
	if tools, ok := p.tools.cached(); ok {
		return tools, nil
	}
	select {
	case p.listing <- struct{}{}:
		defer func() { <-p.listing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if tools, ok := p.tools.cached(); ok {
		return tools, nil
	}
	proc, err := p.ready(ctx, nil)
	if err != nil {
		return nil, p.explain(ctx, err)
	}
	defer p.keep(proc, 0)
	tools, err := p.tools.get(ctx, proc.session, "")
	return tools, p.explain(ctx, err)
}

// Close ends all processes. Runs that are under way fail.
func (p *Processes) Close() error {
	p.mu.Lock()
	p.closed = true
	for proc := range p.all {
		p.ending.Go(func() { _ = proc.session.Close() })
	}
	p.idle = nil
	p.mu.Unlock()
	p.ending.Wait()
	return nil
}

// acquire takes a slot and a process for a job.
func (p *Processes) acquire(ctx context.Context, job *engine.Job) (*process, error) {
	if err := p.slots.take(ctx); err != nil {
		return nil, err
	}
	proc, err := p.ready(ctx, job)
	if err != nil {
		p.slots.give()
	}
	return proc, err
}

// ready returns a process that is idle and may run the job, or any at all if that is nil, or a
// new one.
func (p *Processes) ready(ctx context.Context, job *engine.Job) (*process, error) {
	for {
		proc, err := p.nextIdle(job)
		if err != nil {
			return nil, err
		}
		if proc == nil {
			return p.start(ctx, job)
		}
		select {
		case <-proc.session.Done(): // it died meanwhile
			p.end(proc)
		default:
			return proc, nil
		}
	}
}

// nextIdle takes an idle process that may run the job, the one used last. If there is none, one
// of another client makes room.
func (p *Processes) nextIdle(job *engine.Job) (*process, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, session.ErrClosed
	}
	var wanted client
	if job != nil {
		wanted = clientOf(job)
	}
	for i, proc := range slices.Backward(p.idle) {
		if job == nil || proc.client == wanted {
			p.idle = slices.Delete(p.idle, i, i+1)
			return proc, nil
		}
	}
	p.trim(p.slots.spare())
	return nil, nil
}

// trim ends idle processes, those that were used longest ago, until no more than n are left.
func (p *Processes) trim(n int) {
	for len(p.idle) > max(0, n) {
		proc := p.idle[0]
		p.idle = p.idle[1:]
		p.ending.Go(func() { p.end(proc) })
	}
}

// start starts a process for a job, or for none.
func (p *Processes) start(ctx context.Context, job *engine.Job) (*process, error) {
	cmd := exec.Command(p.path, p.args[1:]...) //nolint:noctx // it outlives the run that starts it
	cmd.Stderr = LogLines(p.log)
	proc := &process{}
	var caller *engine.Caller
	if job != nil {
		proc.client, caller = clientOf(job), job.Caller
	}
	s, err := session.Connect(ctx, session.CommandTransport(cmd), &session.Options{
		Capabilities: caller.Capabilities(),
		OnNotification: func(method string, params json.RawMessage) {
			if method == protocol.MethodToolsChanged {
				p.tools.changed()
			}
			if at := proc.current.Load(); at != nil {
				notify(at.line, method, params)
			}
		},
		OnRequest: func(ctx context.Context, method string, params json.RawMessage) session.Answer {
			if at := proc.current.Load(); at != nil {
				return ask(ctx, at.over, at.line, method, params)
			}
			return session.Refuse(ctx, method, params)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.args[0], err)
	}
	setLevel(ctx, s, caller)
	proc.session = s
	if !p.add(proc) {
		_ = s.Close()
		return nil, session.ErrClosed
	}
	return proc, nil
}

func (p *Processes) add(proc *process) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.all[proc] = struct{}{}
	}
	return !p.closed
}

// release gives a process and its slot back.
func (p *Processes) release(proc *process) {
	select {
	case <-proc.session.Done():
		p.discard(proc)
		return
	default:
	}
	p.keep(proc, 1)
	p.slots.give() // after keep: whoever gets it finds the process
}

// keep makes a process idle, if there is room for it once so many slots are given back.
func (p *Processes) keep(proc *process, slots int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.idle = append(p.idle, proc)
	p.trim(p.slots.spare() + slots)
}

// discard ends a process; its slot is free when it is gone.
func (p *Processes) discard(proc *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed { // Close does it
		p.slots.give()
		return
	}
	p.ending.Go(func() {
		p.end(proc)
		p.slots.give()
	})
}

func (p *Processes) end(proc *process) {
	_ = proc.session.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, proc)
}

// explain makes the want of an answer an error that the requestor may see.
func (p *Processes) explain(ctx context.Context, err error) error {
	var ended *session.ProcessError
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.As(err, &ended):
		p.log.Warn("a server process ended before it answered", "command", p.args[0], "status", ended.Status)
		return protocol.Errorf(protocol.CodeInternalError, "The server process ended before it answered (%s)", ended.Status)
	case errors.Is(err, session.ErrClosed):
		return protocol.Errorf(protocol.CodeInternalError, "The server process was ended before it answered")
	}
	return err
}
