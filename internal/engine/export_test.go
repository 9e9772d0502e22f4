package engine

// CheckTurns verifies that the tasks which work and wait are counted rightly.
func (e *Engine) CheckTurns() error { return e.turns.check(e.runningHere()) }
