package sqlite_test

import (
	"path/filepath"
	"testing"

	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/store/sqlite"
	"github.com/coatcheck/coatcheck/store/storetest"
)

func open(t *testing.T, file string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), file, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		file := filepath.Join(t.TempDir(), "tasks.db")
		h := storetest.Harness{Store: open(t, file)}
		h.Reopen = func() store.Store {
			if err := h.Store.Close(); err != nil {
				t.Error(err)
			}
			return open(t, file)
		}
		return h
	})
}
