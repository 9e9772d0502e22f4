package telemetry

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Live names tasks that are alike: of one tool, in one status.
type Live struct {
	Tool   string
	Status string // working, input_required, or queued
}

// Tasks is what a node has under way.
type Tasks struct {
	Live  map[Live]int
	Waits int // open tasks/result calls
}

// Pool is the use of a pool of processes.
type Pool struct {
	Limit  int // tasks that may work at a time
	Busy   int // processes whose task works
	Input  int // processes whose task waits for input
	Idle   int // processes kept for the next task
	Queued int // tasks that wait for a process
}

// ObserveTasks has what look returns measured, until Close.
func (m *Metrics) ObserveTasks(look func() Tasks) error {
	tasks, err1 := m.meter.Int64ObservableUpDownCounter("coatcheck.task.active",
		metric.WithUnit("{task}"), metric.WithDescription("Tasks under way in this process."))
	waits, err2 := m.meter.Int64ObservableUpDownCounter("coatcheck.task.waiters",
		metric.WithUnit("{call}"), metric.WithDescription("Open tasks/result calls."))
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	var mu sync.Mutex
	seen := map[Live]struct{}{} // bounded, as the tools are
	return m.observe(func(_ context.Context, o metric.Observer) error {
		now := look()
		sums := map[Live]int{}
		for live, n := range now.Live {
			if live.Tool != "" {
				live.Tool = m.tools.bound(live.Tool)
			}
			sums[live] += n
		}
		mu.Lock()
		defer mu.Unlock()
		for live := range sums {
			seen[live] = struct{}{}
		}
		for live := range seen { // those, too, of which there are none any more
			o.ObserveInt64(tasks, int64(sums[live]),
				metric.WithAttributes(append(m.tools.attribute(keyTool, live.Tool), keyStatus.String(live.Status))...))
		}
		o.ObserveInt64(waits, int64(now.Waits))
		return nil
	}, tasks, waits)
}

// ObservePool has what look returns measured, until Close.
func (m *Metrics) ObservePool(look func() Pool) error {
	processes, err1 := m.meter.Int64ObservableUpDownCounter("coatcheck.pool.processes",
		metric.WithUnit("{process}"), metric.WithDescription("Processes of the pool that runs tasks."))
	limit, err2 := m.meter.Int64ObservableUpDownCounter("coatcheck.pool.limit",
		metric.WithUnit("{task}"), metric.WithDescription("Tasks that may work at a time in the pool."))
	queued, err3 := m.meter.Int64ObservableUpDownCounter("coatcheck.pool.queued",
		metric.WithUnit("{task}"), metric.WithDescription("Tasks that wait for a process of the pool."))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	state := func(name string) metric.ObserveOption {
		return metric.WithAttributeSet(attribute.NewSet(keyProcess.String(name)))
	}
	busy, input, idle := state("busy"), state("input"), state("idle")
	return m.observe(func(_ context.Context, o metric.Observer) error {
		now := look()
		o.ObserveInt64(processes, int64(now.Busy), busy)
		o.ObserveInt64(processes, int64(now.Input), input)
		o.ObserveInt64(processes, int64(now.Idle), idle)
		o.ObserveInt64(limit, int64(now.Limit))
		o.ObserveInt64(queued, int64(now.Queued))
		return nil
	}, processes, limit, queued)
}

// ObserveSessions has the number of HTTP sessions measured, until Close.
func (m *Metrics) ObserveSessions(look func() int) error {
	sessions, err := m.meter.Int64ObservableUpDownCounter("coatcheck.gateway.sessions",
		metric.WithUnit("{session}"), metric.WithDescription("HTTP sessions that live, each with a process of its own."))
	if err != nil {
		return err
	}
	return m.observe(func(_ context.Context, o metric.Observer) error {
		o.ObserveInt64(sessions, int64(look()))
		return nil
	}, sessions)
}

func (m *Metrics) observe(callback metric.Callback, what ...metric.Observable) error {
	registration, err := m.meter.RegisterCallback(callback, what...)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registered = append(m.registered, registration)
	return nil
}
