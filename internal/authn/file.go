package authn

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

const (
	maxFile   = 4 << 20     // bytes
	readEvery = time.Second // at most
)

// watchedFile is a file that is read again while it is used, and parsed when it has changed.
// What it holds is a T; an error means that it cannot be told now.
type watchedFile[T any] struct {
	path  string
	parse func([]byte) (T, error)
	now   func() time.Time

	mu      sync.Mutex
	read    time.Time // zero before the first
	content []byte
	value   T
	err     error
}

// get returns the value of at most a second ago.
func (f *watchedFile[T]) get() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if since := now.Sub(f.read); !f.read.IsZero() && since >= 0 && since < readEvery {
		return f.value, f.err
	}
	first := f.read.IsZero()
	f.read = now
	content, err := readFile(f.path)
	switch {
	case err != nil:
		f.content, f.err = nil, err
	case first || f.err != nil || !bytes.Equal(content, f.content):
		f.content = content
		f.value, f.err = f.parse(content)
	}
	if f.err != nil {
		var none T
		f.value = none
	}
	return f.value, f.err
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(content) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return content, err
}
