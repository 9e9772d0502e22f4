//go:build race

package peers

// The binary under test looks for data races when the tests do.
func init() { raceFlags = []string{"-race"} }
