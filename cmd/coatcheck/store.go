package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// checkStore checks the value of a flag that names a store.
func checkStore(flag, store string) error {
	if kind, rest, _ := strings.Cut(store, ":"); (kind != "sqlite" || rest == "") && store != "memory:" {
		return fmt.Errorf("%s %q is no store: write memory: or sqlite:FILE", flag, store)
	}
	return nil
}

// checkFolder checks that a store's folder is there.
func checkFolder(flag, store string) error {
	file, ok := strings.CutPrefix(store, "sqlite:")
	if !ok {
		return nil
	}
	if _, err := os.Stat(filepath.Dir(file)); err != nil {
		return fmt.Errorf("cannot open the store %s: %w; create its folder, or choose another with %s", store, err, flag)
	}
	return nil
}
