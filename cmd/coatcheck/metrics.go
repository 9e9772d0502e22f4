package main

import (
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/coatcheck/coatcheck/internal/gateway"
)

// metricsFlags are those that say how a gateway is watched.
type metricsFlags struct {
	Metrics string `placeholder:"ADDR" help:"Serve /metrics for Prometheus, /livez and /readyz on this address, over plain HTTP and to anybody who reaches it. Port 0 takes a free one."`
}

// applyMetrics sets what the flags say, where it makes sense.
func (f *metricsFlags) applyMetrics(c *gateway.Config) error {
	if f.Metrics == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(f.Metrics); err != nil {
		return fmt.Errorf("--metrics %q is not HOST:PORT", f.Metrics)
	}
	if f.Metrics == c.Listen && c.Stdio == nil {
		if _, port, _ := net.SplitHostPort(f.Metrics); port != "0" {
			return errors.New("--metrics and --listen need ports of their own")
		}
	}
	c.Metrics = f.Metrics
	return nil
}

// metricsReady says where the metrics are.
func metricsReady(w io.Writer, address string) {
	fmt.Fprintf(w, "metrics on http://%s/metrics\n", address)
}
