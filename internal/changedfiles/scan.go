package changedfiles

import (
	"bytes"
	"regexp"
	"sync"
)

// overlap is how much of what was written before is looked at together with what is written next: more than a key's first lines.
const overlap = 4 << 10

// keys finds private keys, not the words that programs know them by: behind the words, a key has its content. The forms are those of RFC 7468, RFC 1421
// (headers) and RFC 9580 (block), with line ends as they are or escaped, of PuTTY and of age. Each begins with words that are found fast.
var keys = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[A-Za-z-]{1,30}: [^\n]{0,200}\n|\\[nr]|[\s"'+,])*[A-Za-z0-9+/]{32}`),
		regexp.MustCompile(`Private-Lines: [0-9]+\r?\n[A-Za-z0-9+/]{32}`),
		regexp.MustCompile(`AGE-SECRET-KEY-1[0-9A-Z]{50}`),
	}
})

// fewestOfSecret is the length of the shortest line that tells a key from others, in bytes.
const fewestOfSecret = 16

// scanner searches what is written to it. It never fails.
type scanner struct {
	secrets [][]byte
	window  []byte
	// own: a secret of the cluster was found; key: a private key.
	own, key bool
}

func (s *scanner) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		piece := p[:min(len(p), 16*overlap)]
		p = p[len(piece):]
		s.window = append(s.window, piece...)
		s.look()
		if more := len(s.window) - overlap; more > 0 {
			s.window = append(s.window[:0], s.window[more:]...)
		}
	}
	return n, nil
}

func (s *scanner) look() {
	for _, secret := range s.secrets {
		s.own = s.own || bytes.Contains(s.window, secret)
	}
	for _, form := range keys() {
		s.key = s.key || form.Match(s.window)
	}
}

// reset begins with another file.
func (s *scanner) reset() { s.window, s.own, s.key = s.window[:0], false, false }

// Marks returns what tells the content of secrets wherever they are: of a key in PEM its lines but the first, which has the kind of the key and is the same
// in many, of others the whole.
func Marks(secrets ...[]byte) (marks [][]byte) {
	for _, secret := range secrets {
		if !bytes.HasPrefix(secret, []byte("-----BEGIN ")) {
			if len(secret) >= fewestOfSecret { // what is shorter is in many files
				marks = append(marks, secret)
			}
			continue
		}
		lines := bytes.Split(bytes.TrimSpace(secret), []byte("\n"))
		for _, line := range lines[min(2, len(lines)):] {
			if line = bytes.TrimSpace(line); len(line) >= fewestOfSecret && !bytes.HasPrefix(line, []byte("-----")) {
				marks = append(marks, line)
			}
		}
	}
	return marks
}
