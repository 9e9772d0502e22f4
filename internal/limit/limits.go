// Package limit says how much requestors may have and do, and keeps count of what passes by
// (SEC-5, RSC-1, RSC-2).
package limit

import (
	"cmp"
	"time"

	"github.com/coatcheck/coatcheck/task"
)

// None as a limit is no limit.
const None = -1

// Rate is how often something may be done: PerSecond on average, Burst at once. The zero Rate
// stands for a default; one with a negative PerSecond is no limit.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Limits bound what one principal may have and do. In place of a requestor without identity
// stands its address, except for what is stored. A field that is zero has its default, a
// negative one is no limit.
type Limits struct {
	Running int           // tasks that work at once; those that wait for input do not count; default 64
	Queued  int           // tasks that wait for their turn beyond that; default 256
	NoQueue bool          // no task waits: beyond Running a create is refused
	Tasks   int           // stored tasks; default 10,000
	Bytes   int64         // of requests, outcomes and input requests stored; a create beyond is refused, an outcome is not; default 1 GiB
	Request int64         // bytes of one task's params; default 16 MiB
	Result  int64         // bytes of one outcome; beyond it the task has failed; default 64 MiB
	MaxTTL  time.Duration // the longest lifetime (RSC-2); default the runtime's
	Inputs  int           // requests that one task may make of its requestor; default 1,000
	Waits   int           // open tasks/result calls; default 256

	Creates Rate // default 20 per s, 200 at once
	Gets    Rate // tasks/get, tasks/result, tasks/cancel and answers; default 200 per s, 1,000 at once
	Lists   Rate // default 10 per s, 50 at once
	Misses  Rate // look-ups of tasks that are not there; default 2 per s, 100 at once
	// Polls is how many times as often as its pollInterval says a task may be polled; beyond
	// it, and 20 polls at once, the answers are delayed; default 4.
	Polls float64
}

// Tool bounds what is done with one tool. A zero field sets nothing.
type Tool struct {
	Running int           // tasks of the tool that work at once, of all principals
	Request int64         // as in Limits, and instead of it
	Result  int64         // as in Limits, and instead of it
	MaxTTL  time.Duration // as in Limits; the shorter of the two holds
	Inputs  int           // as in Limits, and instead of it
	Creates Rate          // of one principal, beside that of Limits
}

// Policy is all limits that are set. A nil *Policy means the defaults.
type Policy struct {
	Limits           // of each principal
	RunningInAll int // tasks that work at once, of all principals; default 1,024
	QueuedInAll  int // tasks that wait for their turn, of all principals; default 4,096
	Tools        map[string]Tool
	// Principals has what holds for some principals instead: a field that is not zero.
	Principals map[task.Principal]Limits
	// Of is asked for a principal that Principals does not name, if it is set. It is called
	// often and must be quick.
	Of func(task.Principal) Limits
}

// defaults are those of Limits.
var defaults = Limits{
	Running: 64, Queued: 256, Tasks: 10_000, Bytes: 1 << 30, Request: 16 << 20, Result: 64 << 20, Inputs: 1_000, Waits: 256,
	Creates: Rate{20, 200}, Gets: Rate{200, 1_000}, Lists: Rate{10, 50}, Misses: Rate{2, 100}, Polls: 4,
}

// For returns the limits in force for a principal. MaxTTL is 0 if none is set.
func (p *Policy) For(who task.Principal) Limits {
	if p == nil {
		return defaults
	}
	own, named := p.Principals[who]
	if !named && p.Of != nil {
		own = p.Of(who)
	}
	return own.or(p.Limits).or(defaults)
}

// or returns the limits with those of l2 where none are set.
func (l Limits) or(l2 Limits) Limits {
	return Limits{
		Running: cmp.Or(l.Running, l2.Running),
		Queued:  cmp.Or(l.Queued, l2.Queued),
		NoQueue: l.NoQueue || l.Queued == 0 && l2.NoQueue, // who has a queue of his own has one
		Tasks:   cmp.Or(l.Tasks, l2.Tasks),
		Bytes:   cmp.Or(l.Bytes, l2.Bytes),
		Request: cmp.Or(l.Request, l2.Request),
		Result:  cmp.Or(l.Result, l2.Result),
		MaxTTL:  cmp.Or(l.MaxTTL, l2.MaxTTL),
		Inputs:  cmp.Or(l.Inputs, l2.Inputs),
		Waits:   cmp.Or(l.Waits, l2.Waits),
		Creates: cmp.Or(l.Creates, l2.Creates),
		Gets:    cmp.Or(l.Gets, l2.Gets),
		Lists:   cmp.Or(l.Lists, l2.Lists),
		Misses:  cmp.Or(l.Misses, l2.Misses),
		Polls:   cmp.Or(l.Polls, l2.Polls),
	}
}

// Call returns the limits in force for a principal's call of a tool.
func (p *Policy) Call(who task.Principal, tool string) Limits {
	l := p.For(who)
	t := p.Tool(tool)
	l.Request = cmp.Or(t.Request, l.Request)
	l.Result = cmp.Or(t.Result, l.Result)
	l.Inputs = cmp.Or(t.Inputs, l.Inputs)
	switch {
	case t.MaxTTL > 0 && l.MaxTTL > 0:
		l.MaxTTL = min(t.MaxTTL, l.MaxTTL)
	case t.MaxTTL > 0:
		l.MaxTTL = t.MaxTTL
	}
	return l
}

// Tool returns the limits that are set for a tool.
func (p *Policy) Tool(name string) Tool {
	if p == nil {
		return Tool{}
	}
	return p.Tools[name]
}

// InAll returns how many tasks of all principals may work, and wait for their turn.
func (p *Policy) InAll() (running, queued int) {
	running, queued = 1024, 4096
	if p != nil {
		running, queued = cmp.Or(p.RunningInAll, running), cmp.Or(p.QueuedInAll, queued)
	}
	return running, queued
}

// Exceeds reports whether n is more than a limit allows.
func Exceeds[N int | int64](n, most N) bool { return most >= 0 && n > most }

// Off returns a policy without limits.
func Off() *Policy {
	off := Rate{PerSecond: None}
	return &Policy{
		Limits: Limits{
			Running: None, Tasks: None, Bytes: None, Request: None, Result: None, Inputs: None, Waits: None,
			Creates: off, Gets: off, Lists: off, Misses: off, Polls: None,
		},
		RunningInAll: None,
	}
}
