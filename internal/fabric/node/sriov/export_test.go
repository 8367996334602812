package sriov

// Syncs returns how many files and folders of the ledger were synced since it was opened.
func (m *Manager) Syncs() int {
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	return m.ledger.syncs
}
