package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	defaultMaxSize = 100 << 20
	defaultKeep    = 10
)

// rotated is a file of lines that is put aside when it is full. It may be used concurrently.
// Several processes that write to one file spoil nothing of each other's, but may rotate early.
type rotated struct {
	path    string // without symbolic links
	maxSize int64  // 0 is no limit
	keep    int    // negative is all
	maxAge  time.Duration
	now     func() time.Time
	faults  *faults // of putting aside and deleting

	mu     sync.Mutex
	file   *os.File // nil if it could not be opened again
	closed bool
	plain  bool        // it is a regular file
	mode   fs.FileMode // of the next one
	size   int64
	torn   bool      // its last line has no end
	look   time.Time // when to see whether the file is still there
	tidied time.Time
}

func openRotated(path string, o FileOptions) (*rotated, error) {
	r := &rotated{
		path: path, maxSize: o.MaxSize, keep: o.Keep, maxAge: o.MaxAge, now: time.Now, mode: 0o600,
		faults: newFaults(o.Log.Logger, "old audit files cannot be put aside or deleted"),
	}
	switch {
	case r.maxSize == 0:
		r.maxSize = defaultMaxSize
	case r.maxSize < 0:
		r.maxSize = 0
	}
	if r.keep == 0 {
		r.keep = defaultKeep
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	if !r.plain {
		return r, nil
	}
	target, err := filepath.EvalSymlinks(path)
	if err == nil {
		r.path, err = filepath.Abs(target)
	}
	if err != nil {
		return nil, errors.Join(err, r.file.Close())
	}
	r.tidy()
	return r, nil
}

// open opens the file, or makes it.
func (r *rotated) open() error {
	f, err := os.OpenFile(r.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, r.mode)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r.plain, r.size, r.torn = info.Mode().IsRegular(), 0, false
	if r.plain {
		r.mode = info.Mode().Perm()&0o640 | 0o600
		if info.Mode().Perm() != r.mode {
			if err := f.Chmod(r.mode); err != nil {
				return errors.Join(err, f.Close())
			}
		}
		if r.size = info.Size(); r.size > 0 {
			last := make([]byte, 1)
			_, err := f.ReadAt(last, r.size-1)
			r.torn = err == nil && last[0] != '\n'
		}
	}
	r.file, r.look = f, r.now().Add(time.Second)
	return nil
}

// Write appends one or more whole lines. The error says that they are lost.
func (r *rotated) Write(lines []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, os.ErrClosed
	}
	if err := r.ready(int64(len(lines))); err != nil {
		return 0, err
	}
	if r.torn {
		if _, err := r.file.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		r.size++
		r.torn = false
	}
	n, err := r.file.Write(lines)
	r.size += int64(n)
	r.torn = n > 0 && n < len(lines)
	return n, err
}

// ready sees to it that there is a file with room for n bytes.
func (r *rotated) ready(n int64) error {
	now := r.now()
	if r.file == nil {
		return r.open()
	}
	if !r.plain {
		return nil
	}
	if !now.Before(r.look) {
		r.look = now.Add(time.Second)
		if moved, err := r.moved(); err != nil || moved {
			_ = r.file.Close()
			r.file = nil
			return r.open()
		}
		if now.Sub(r.tidied) >= time.Hour {
			r.tidy()
		}
	}
	if r.maxSize > 0 && r.size > 0 && r.size+n > r.maxSize {
		return r.rotate()
	}
	return nil
}

// moved reports whether the path leads to another file by now, or to none. It also counts what
// others have written.
func (r *rotated) moved() (bool, error) {
	mine, err := r.file.Stat()
	if err != nil {
		return false, err
	}
	r.size = mine.Size()
	there, err := os.Stat(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, nil //nolint:nilerr // what is open can still be written to
	}
	return !os.SameFile(mine, there), nil
}

// rotate puts the file aside and makes a new one. If it cannot, the file goes on to grow.
func (r *rotated) rotate() error {
	moved, err := r.moved()
	if err != nil {
		return err
	}
	_ = r.file.Close()
	r.file = nil
	if !moved { // else another process has done it
		if err := r.putAside(); err != nil {
			r.faults.add(err)
			return r.open()
		}
	}
	if err := r.open(); err != nil {
		return err
	}
	r.tidy()
	r.faults.tell()
	return nil
}

// stamp is when a file was put aside, in its name.
const stamp = "2006-01-02T15-04-05.000000000"

func (r *rotated) putAside() error {
	prefix, ext := r.names()
	for at := r.now().UTC(); ; at = at.Add(1) {
		old := prefix + at.Format(stamp) + ext
		if _, err := os.Lstat(old); errors.Is(err, fs.ErrNotExist) {
			return os.Rename(r.path, old)
		} else if err != nil {
			return err
		}
	}
}

// names returns what stands before and after the time in the path of an old file.
func (r *rotated) names() (prefix, ext string) {
	ext = filepath.Ext(r.path)
	return strings.TrimSuffix(r.path, ext) + "-", ext
}

// tidy deletes old files that are too many or too old.
func (r *rotated) tidy() {
	r.tidied = r.now()
	if !r.plain || r.keep < 0 && r.maxAge <= 0 {
		return
	}
	type old struct {
		path string
		at   time.Time
	}
	var olds []old
	entries, err := os.ReadDir(filepath.Dir(r.path))
	if err != nil {
		r.faults.add(err)
		return
	}
	prefix, ext := r.names()
	for _, e := range entries {
		path := filepath.Join(filepath.Dir(r.path), e.Name())
		rest, ours := strings.CutPrefix(path, prefix)
		rest, ends := strings.CutSuffix(rest, ext)
		at, err := time.Parse(stamp, rest)
		if ours && ends && err == nil && e.Type().IsRegular() {
			olds = append(olds, old{path, at})
		}
	}
	slices.SortFunc(olds, func(a, b old) int { return b.at.Compare(a.at) }) // newest first
	for i, o := range olds {
		if r.keep >= 0 && i >= r.keep || r.maxAge > 0 && r.tidied.Sub(o.at) > r.maxAge {
			if err := os.Remove(o.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				r.faults.add(fmt.Errorf("deleting an old file: %w", err))
			}
		}
	}
}

// Close closes the file for good.
func (r *rotated) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults.flush(time.Time{})
	r.closed = true
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}
