package audit

// Sizes returns how much a Watch remembers: windows by pattern, and tasks.
func Sizes(s Sink) (windows map[string]int, tasks int) {
	w := s.(*watch)
	w.mu.Lock()
	defer w.mu.Unlock()
	windows = map[string]int{}
	for _, p := range w.patterns() {
		windows[p.name] = len(p.of)
		chain := 0
		for at := p.oldest; at != nil; at = at.next {
			chain++
		}
		if chain != len(p.of) {
			panic("a window is in the map or in the chain alone")
		}
	}
	if len(w.owners.of) != len(w.owners.ring) {
		panic("a task is in the map or in the ring alone")
	}
	return windows, len(w.owners.of)
}
