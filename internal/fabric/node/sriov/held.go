package sriov

import "github.com/nearmetal/nearmetal/internal/fabric"

// Held returns the functions of an assignment, sorted, also those that it is releasing.
func (m *Manager) Held(assignment string) []fabric.Function {
	var held []fabric.Function
	for _, h := range m.Holdings() {
		if h.Owner.Assignment == assignment {
			held = append(held, h.Function)
		}
	}
	return held
}
