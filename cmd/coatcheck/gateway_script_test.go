package main

import "testing"

// TestGatewayScripts runs the scripts that need a gateway.
func TestGatewayScripts(t *testing.T) { runScripts(t, "testdata/gateway") }
