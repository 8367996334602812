package power

import "sync"

// Passwords are those of a BMC that a switch logs in with: one, or two while another is being set. It may be used from many goroutines.
type Passwords struct {
	password, next string

	mu   sync.Mutex
	took *string // the one that was right last; nil: none yet
}

// NewPasswords returns the passwords of credentials.
func NewPasswords(c Credentials) *Passwords { return &Passwords{password: c.Password, next: c.Next} }

// Right returns the password to log in with: the one that was right last.
func (p *Passwords) Right() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.took != nil {
		return *p.took
	}
	return p.password
}

// Took notes the password that was right last.
func (p *Passwords) Took(password string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.took = &password
}

// Other returns the password to try when one was refused, empty for none: BMCs lock users that are refused too often.
func (p *Passwords) Other(refused string) string {
	switch {
	case p.next == "":
		return ""
	case refused == p.next:
		return p.password
	}
	return p.next
}

// String keeps secrets out of logs.
func (*Passwords) String() string { return "(passwords)" }

// GoString keeps secrets out of logs.
func (*Passwords) GoString() string { return "(passwords)" }
