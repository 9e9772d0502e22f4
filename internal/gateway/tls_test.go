package gateway

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	der, key := a.make(t, &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.key = key
	return a
}

// make makes a certificate, at first the authority's own.
func (a *authority) make(t *testing.T, of *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of.SerialNumber, _ = rand.Int(rand.Reader, big.NewInt(1<<62))
	of.NotBefore, of.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = of, key
	}
	if der, err = x509.CreateCertificate(rand.Reader, of, parent, &key.PublicKey, signer); err != nil {
		t.Fatal(err)
	}
	return der, key
}

// files writes the certificate of a server at this machine.
func (a *authority) files(t *testing.T, dir, name string) *TLS {
	t.Helper()
	der, key := a.make(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := &TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	write(t, files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, files.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	return files
}

// client returns a client's certificate.
func (a *authority) client(t *testing.T) *tls.Certificate {
	t.Helper()
	der, key := a.make(t, &x509.Certificate{Subject: pkix.Name{CommonName: "client"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// transport returns a client's transport that trusts the authority.
func (a *authority) transport(own *tls.Certificate) *http.Transport {
	trusted := x509.NewCertPool()
	trusted.AddCert(a.cert)
	config := &tls.Config{RootCAs: trusted}
	if own != nil {
		config.Certificates = []tls.Certificate{*own}
	}
	return &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// handshake connects to a gateway once and returns the certificate and version it has there.
func handshake(t *testing.T, transport *http.Transport, url string) (name string, version uint16, err error) {
	t.Helper()
	defer transport.CloseIdleConnections()
	req, _ := http.NewRequest(http.MethodGet, url, nil)
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", 0, err
	}
	_ = resp.Body.Close()
	return resp.TLS.PeerCertificates[0].Subject.CommonName, resp.TLS.Version, nil
}

// TLS is 1.3 unless 1.2 is allowed, and never less; HTTP in the clear is not served beside it.
func TestTLSVersions(t *testing.T) {
	a := newAuthority(t)
	files := a.files(t, t.TempDir(), "localhost")
	for _, tc := range []struct{ least, client, want uint16 }{
		{0, 0, tls.VersionTLS13}, {0, tls.VersionTLS12, 0}, {tls.VersionTLS12, tls.VersionTLS12, tls.VersionTLS12}, {tls.VersionTLS12, tls.VersionTLS11, 0},
	} {
		files.Min = tc.least
		url := serve(t, Config{Command: []string{"raw"}, Guard: Guard{TLS: files}})
		transport := a.transport(nil)
		transport.TLSClientConfig.MinVersion, transport.TLSClientConfig.MaxVersion = tls.VersionTLS10, tc.client
		_, version, err := handshake(t, transport, url)
		if version != tc.want || (err == nil) != (tc.want != 0) {
			t.Errorf("%+v: %x, %v", tc, version, err)
		}
		plain := &http.Transport{}
		req, _ := http.NewRequest(http.MethodGet, "http"+strings.TrimPrefix(url, "https"), nil)
		if resp, err := plain.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusBadRequest || resp.TLS != nil {
				t.Errorf("in the clear: %d", resp.StatusCode)
			}
		}
		plain.CloseIdleConnections()
	}
}

// A client without a certificate of the authority is not let in.
func TestTLSClients(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	files := a.files(t, dir, "localhost")
	files.ClientCA = filepath.Join(dir, "ca.pem")
	write(t, files.ClientCA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
	url := serve(t, Config{Command: []string{"raw"}, Guard: Guard{TLS: files}})
	for who, tc := range map[string]struct {
		cert *tls.Certificate
		ok   bool
	}{"nobody": {nil, false}, "a stranger": {stranger.client(t), false}, "a client": {a.client(t), true}} {
		if _, _, err := handshake(t, a.transport(tc.cert), url); (err == nil) != tc.ok {
			t.Errorf("%s: %v", who, err)
		}
	}
}

// A certificate that was renewed is used from then on; files that are no pair are not.
func TestTLSReload(t *testing.T) {
	var log bytes.Buffer
	a := newAuthority(t)
	dir := t.TempDir()
	files := a.files(t, dir, "first")
	url, stop := start(t, Config{
		Command: []string{"raw"}, Guard: Guard{TLS: files, Times: Times{Files: time.Nanosecond}},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	name := func() string {
		name, _, err := handshake(t, a.transport(nil), url)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	if got := name(); got != "first" {
		t.Errorf("at first %s", got)
	}
	write(t, files.Cert, []byte("no certificate"))
	for range 3 {
		if got := name(); got != "first" {
			t.Errorf("without a certificate %s", got)
		}
	}
	a.files(t, dir, "second")
	if got := name(); got != "second" {
		t.Errorf("when it was renewed %s", got)
	}
	stop()
	if n := strings.Count(log.String(), "cannot be used"); n != 1 {
		t.Errorf("%d complaints:\n%s", n, log.String())
	}
}

// What is wrong with a file is said before anything is served, and of which.
func TestTLSErrors(t *testing.T) {
	dir := t.TempDir()
	good, other := newAuthority(t).files(t, dir, "a"), newAuthority(t).files(t, t.TempDir(), "b")
	missing, garbage := filepath.Join(dir, "missing"), filepath.Join(dir, "garbage")
	write(t, garbage, []byte("garbage"))
	for field, files := range map[string]TLS{
		"Cert":         {Cert: missing, Key: good.Key},
		"Key":          {Cert: good.Cert, Key: missing},
		"Cert and Key": {Cert: good.Cert, Key: other.Key},
		"ClientCA":     {Cert: good.Cert, Key: good.Key, ClientCA: garbage},
	} {
		err := Serve(t.Context(), Config{Command: []string{"true"}, Listen: "127.0.0.1:0", Store: "memory:", Guard: Guard{TLS: &files}})
		if wrong, ok := errors.AsType[*FileError](err); !ok || wrong.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}
