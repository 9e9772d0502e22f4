package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/coatcheck/coatcheck/store/memory"
	"github.com/coatcheck/coatcheck/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Harness { return storetest.Harness{Store: memory.New()} })
}
