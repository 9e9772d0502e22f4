package wire

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// rebound reports a request that reached a loopback address under a foreign host name: a
// web page that had its name point here (DNS rebinding). The SDK's handler refuses these,
// so what does not reach it must be refused too.
func rebound(req *http.Request) bool {
	local, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || local == nil {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	return err == nil && at.Addr().IsLoopback() && !IsLoopback(req.Host)
}

// IsLoopback reports whether a host, with or without a port, is this machine by name or address.
func IsLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.IsLoopback()
}
