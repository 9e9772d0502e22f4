package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// TLS is with what the endpoint shows who it is, and whom it lets in. The files are PEM and
// read again when they change.
type TLS struct {
	Cert, Key string
	ClientCA  string // of those who vouch for clients, which then must have a certificate; default none
	Min       uint16 // version; default tls.VersionTLS13
}

// FileError is what is wrong with the file of a field of TLS.
type FileError struct {
	Field string // "Cert", "Key", "Cert and Key" or "ClientCA"
	Err   error
}

func (e *FileError) Error() string { return e.Field + ": " + e.Err.Error() }

func (e *FileError) Unwrap() error { return e.Err }

// Load reads the files. Its errors are *FileError.
func (t *TLS) Load() (*tls.Config, error) {
	cert, err := os.ReadFile(t.Cert)
	if err != nil {
		return nil, &FileError{"Cert", err}
	}
	key, err := os.ReadFile(t.Key)
	if err != nil {
		return nil, &FileError{"Key", err}
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, &FileError{"Cert and Key", err}
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"}}
	if t.Min != 0 {
		config.MinVersion = t.Min
	}
	if t.ClientCA == "" {
		return config, nil
	}
	authorities, err := os.ReadFile(t.ClientCA)
	if err != nil {
		return nil, &FileError{"ClientCA", err}
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(authorities) {
		return nil, &FileError{"ClientCA", errors.New("there is no certificate in " + t.ClientCA)}
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	config.SessionTicketsDisabled = true // a resumed session would not ask for the certificate again
	return config, nil
}

// stamp tells whether the files have changed.
func (t *TLS) stamp() string {
	var s strings.Builder
	for _, name := range []string{t.Cert, t.Key, t.ClientCA} {
		if info, err := os.Stat(name); err == nil {
			fmt.Fprintf(&s, "%d %d,", info.ModTime().UnixNano(), info.Size())
		}
	}
	return s.String()
}

// certificates is TLS as it stands in its files.
type certificates struct {
	files TLS
	every time.Duration // between two looks at the files
	log   *slog.Logger

	mu     sync.Mutex
	config *tls.Config
	stamp  string // of config
	failed string // stamp of files that could not be used
	looked time.Time
}

// serverConfig returns the configuration of a server that follows the files.
func (t *TLS) serverConfig(every time.Duration, log *slog.Logger) (*tls.Config, error) {
	c := &certificates{files: *t, every: every, log: log, stamp: t.stamp(), looked: time.Now()}
	var err error
	if c.config, err = t.Load(); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: c.config.MinVersion, GetConfigForClient: c.current}, nil
}

// current is tls.Config.GetConfigForClient. Files that cannot be used change nothing.
func (c *certificates) current(*tls.ClientHelloInfo) (*tls.Config, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < c.every {
		return c.config, nil
	}
	c.looked = time.Now()
	stamp := c.files.stamp()
	if stamp == c.stamp {
		return c.config, nil
	}
	config, err := c.files.Load()
	switch {
	case err == nil:
		c.config, c.stamp = config, stamp
		c.log.Info("the TLS certificate was read again")
	case stamp != c.failed:
		c.failed = stamp
		c.log.Warn("the changed TLS files cannot be used; the ones before still are", "error", err)
	}
	return c.config, nil
}
