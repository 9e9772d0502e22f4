package memory

import "github.com/coatcheck/coatcheck/task"

// usage is what a principal has stored.
type usage struct {
	tasks int
	bytes int64
}

func (u usage) with(t *task.Task) usage { return usage{u.tasks + 1, u.bytes + size(t)} }

func (u usage) without(t *task.Task) usage { return usage{u.tasks - 1, u.bytes - size(t)} }

// free takes a task that is deleted from its principal's usage.
func (s *Store) free(t *task.Task) {
	if u := s.usage[t.Principal].without(t); u.tasks == 0 {
		delete(s.usage, t.Principal)
	} else {
		s.usage[t.Principal] = u
	}
}

// stored counts what each principal has stored.
func (s *Store) stored() map[task.Principal]usage {
	all := map[task.Principal]usage{}
	for _, t := range s.tasks {
		all[t.Principal] = all[t.Principal].with(t)
	}
	return all
}

// size returns the bytes of a task that count towards a quota.
func size(t *task.Task) int64 {
	n := len(t.Request.Params) + outcomeSize(t.Outcome)
	for _, in := range t.Inputs {
		n += len(in.Params) + outcomeSize(in.Answer)
	}
	return int64(n)
}

func outcomeSize(o *task.Outcome) int {
	if o == nil {
		return 0
	}
	return len(o.Result) + len(o.Error)
}
