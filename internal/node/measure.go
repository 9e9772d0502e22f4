package node

import (
	"github.com/coatcheck/coatcheck/audit"
	"github.com/coatcheck/coatcheck/internal/telemetry"
	"github.com/coatcheck/coatcheck/store"
)

// measure has the node's events and its store measured, if there is anything to do so with. It
// returns the store to use.
func (n *Node) measure(c *Config) store.Store {
	if n.Metrics = c.Metrics; n.Metrics == nil {
		return n.store
	}
	c.Audit = audit.Join(c.Audit, n.Metrics)
	return n.Metrics.Store(n.store)
}

// observe has what is under way measured.
func (n *Node) observe() error {
	if n.Metrics == nil {
		return nil
	}
	return n.Metrics.ObserveTasks(func() telemetry.Tasks {
		live := map[telemetry.Live]int{}
		for of, count := range n.Engine.Stats().Tasks {
			live[telemetry.Live(of)] = count
		}
		return telemetry.Tasks{Live: live, Waits: n.Receiver.Waits()}
	})
}

func (n *Node) unmeasure() {
	if n.Metrics != nil {
		n.Metrics.Close()
	}
}
