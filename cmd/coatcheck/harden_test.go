package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coatcheck/coatcheck/internal/gateway"
)

func TestGuardFlags(t *testing.T) {
	for line, want := range map[string]gateway.Guard{
		"http://h/mcp": {Connections: 4096, Sessions: 64},
		"--allow-origin https://App.example:443 --allow-origin http://b:1 --allow-host m --allow-host n:2 http://h/mcp": {
			Origins: []string{"https://app.example", "http://b:1"}, Hosts: []string{"m", "n:2"}, Connections: 4096, Sessions: 64,
		},
		"--max-connections 7 --max-sessions 5 http://h/mcp": {Connections: 7, Sessions: 5},
		"--tls-cert c --tls-key k http://h/mcp": {
			Connections: 4096, Sessions: 64, TLS: &gateway.TLS{Cert: "c", Key: "k", Min: tls.VersionTLS13},
		},
		"--tls-cert c --tls-key k --tls-min 1.2 --tls-client-ca a http://h/mcp": {
			Connections: 4096, Sessions: 64, TLS: &gateway.TLS{Cert: "c", Key: "k", ClientCA: "a", Min: tls.VersionTLS12},
		},
	} {
		got, err := parseGateway(t, strings.Fields(line)...)
		if err != nil {
			t.Errorf("%s: %v", line, err)
		} else if diff := cmp.Diff(want, got.Guard); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
	for line, says := range map[string]string{
		"--allow-origin * http://h/":                         `--allow-origin "*": an origin is`,
		"--allow-origin app.example http://h/":               `--allow-origin "app.example": an origin is a scheme and a host`,
		"--allow-origin https://a/b http://h/":               "has only a scheme, a host and a port",
		"--allow-origin null http://h/":                      `--allow-origin "null"`,
		"--max-connections 0 http://h/":                      "--max-connections must be at least 1",
		"--max-sessions 0 http://h/":                         "--max-sessions must be at least 1",
		"--tls-cert c http://h/":                             "--tls-cert and --tls-key need each other",
		"--tls-key k http://h/":                              "--tls-cert and --tls-key need each other",
		"--tls-client-ca a http://h/":                        "--tls-client-ca and --tls-min need",
		"--tls-min 1.2 http://h/":                            "--tls-client-ca and --tls-min need",
		"--tls-cert c --tls-key k --tls-min 1.1 http://h/":   `--tls-min "1.1" is not 1.3 or 1.2`,
		"--stdio --tls-cert c --tls-key k http://h/":         "--stdio has no endpoint",
		"--stdio --allow-origin https://a.example http://h/": "--stdio has no endpoint",
	} {
		if _, err := parseGateway(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", line, err, says)
		}
	}
}

// A file that is wrong is blamed on its flag.
func TestTLSFileErrors(t *testing.T) {
	for field, flag := range map[string]string{"Cert": "--tls-cert: ", "Key": "--tls-key: ", "Cert and Key": "--tls-cert and --tls-key: ", "ClientCA": "--tls-client-ca: "} {
		if got := tlsError(&gateway.FileError{Field: field, Err: os.ErrNotExist}); got.Error() != flag+os.ErrNotExist.Error() || !errors.Is(got, os.ErrNotExist) {
			t.Errorf("%s: %v", field, got)
		}
	}
}

// What is shown of a mistaken URL has no secrets.
func TestURLWithoutSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"ftp://u:p@h/x?k=v": "ftp://h/x", "http://u:p@w@h:port/%zz?k": "http://h:port/%zz", "http://": "http://", "npx": "npx", "@a/b@1": "@a/b@1", "": "",
	} {
		if got := withoutSecrets(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if _, err := parseGateway(t, "ftp://u:SECRET@h/?k=SECRET"); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("%v", err)
	}
}

// makeCertificate is a program that writes a certificate for 127.0.0.1 and its key to cert.pem
// and key.pem.
func makeCertificate() {
	if err := writeCertificate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func writeCertificate() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, of, of, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile("cert.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600),
		os.WriteFile("key.pem", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
	)
}
