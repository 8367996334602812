package rmcpplus

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
)

// suite is a cipher suite (table 22-20): algorithms for authentication, integrity and confidentiality (tables 13-17 to 13-19).
type suite struct {
	id                                          int
	authentication, integrityKind, confidential byte
	hash                                        func() hash.Hash
	// checkBytes are how much of the hash is sent as check.
	checkBytes int
}

var cipherSuites = map[int]suite{
	3:  {id: 3, authentication: 1, integrityKind: 1, confidential: 1, hash: sha1.New, checkBytes: 12},
	17: {id: 17, authentication: 3, integrityKind: 4, confidential: 1, hash: sha256.New, checkBytes: 16},
}

func (c suite) hmac(key []byte, parts ...[]byte) []byte {
	h := hmac.New(c.hash, key)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// keys are a session's.
type keys struct {
	integrity  []byte       // K1
	encryption cipher.Block // AES-128 with the first 16 bytes of K2
}

// statusError is a status code of the set-up that is no success (table 13-15).
type statusError struct {
	during string
	code   byte
}

func (e *statusError) Error() string {
	text := map[byte]string{
		0x01: "insufficient resources for a session", 0x02: "the BMC no longer knows the session", 0x04: "the BMC does not support this authentication", 0x05: "the BMC does not support this integrity check",
		0x09: "the user lacks this privilege", 0x0A: "the user lacks this privilege", 0x0B: "the BMC has no free session of this privilege", 0x0D: "unknown user",
		0x0F: "an integrity check failed", 0x11: "the BMC does not support this cipher suite", 0x12: "a parameter is not valid",
	}[e.code]
	if text == "" {
		text = "see table 13-15 of the IPMI specification"
	}
	return fmt.Sprintf("the BMC answered %s with status %02Xh: %s", e.during, e.code, text)
}

// Is makes ErrBusy and ErrCredentials of the codes that mean them. A wrong check (0Fh) is not among them: the password was verified before.
func (e *statusError) Is(target error) bool {
	switch target {
	case ErrBusy:
		return e.code == 0x01 || e.code == 0x0B || e.code == 0x02 // 02h: it gave the half-open session to somebody else
	case ErrCredentials:
		return e.code == 0x0D || e.privilege()
	}
	return false
}

// privilege tells whether less privilege may be granted.
func (e *statusError) privilege() bool { return e.code == 0x09 || e.code == 0x0A }

// suite tells whether another cipher suite may be spoken.
func (e *statusError) suite() bool {
	return slices.Contains([]byte{0x04, 0x05, 0x06, 0x07, 0x10, 0x11, 0x12}, e.code)
}

// setUp goes through the set-up of a session (section 13.15): Open Session, then RAKP 1 to 4 (sections 13.17 to 13.24).
func (s *Session) setUp(ctx context.Context, user, password string, privilege byte) error {
	request := []byte{0, privilege, 0, 0}
	request = binary.LittleEndian.AppendUint32(request, s.console)
	for i, algorithm := range []byte{s.suite.authentication, s.suite.integrityKind, s.suite.confidential} {
		request = append(request, byte(i), 0, 0, 8, algorithm, 0, 0, 0)
	}
	opened, err := s.ask(ctx, "Open Session", payloadOpenRequest, payloadOpenResponse, 36, request)
	if err != nil {
		return err
	}
	if opened[16] != s.suite.authentication || opened[24] != s.suite.integrityKind || opened[32] != s.suite.confidential {
		return &statusError{during: "Open Session", code: 0x11} // it chose another suite than it was offered
	}
	s.bmc = binary.LittleEndian.Uint32(opened[8:])

	// Names as in section 13.28: Rm and Rc are the random numbers of the console and of the BMC.
	var rm [16]byte
	rand.Read(rm[:]) // never fails (crypto/rand)
	const nameOnly = 0x10
	role := append([]byte{nameOnly | privilege, byte(len(user))}, user...)
	request = binary.LittleEndian.AppendUint32([]byte{0, 0, 0, 0}, s.bmc)
	request = append(append(request, rm[:]...), role[0], 0, 0)
	request = append(request, role[1:]...)
	answer, err := s.ask(ctx, "RAKP message 1", payloadRAKP1, payloadRAKP2, 40, request)
	if err != nil {
		return err
	}
	rc, guid := answer[8:24], answer[24:40]
	kuid := make([]byte, 20)
	copy(kuid, password)
	sidm, sidc := binary.LittleEndian.AppendUint32(nil, s.console), binary.LittleEndian.AppendUint32(nil, s.bmc)
	if !hmac.Equal(answer[40:], s.suite.hmac(kuid, sidm, sidc, rm[:], rc, guid, role)) {
		// The BMC is told, so that it forgets the session; its count of wrong passwords grows by one.
		_, _ = s.conn.Write(s.seal(payloadRAKP3, append([]byte{0, 0x0F, 0, 0}, sidc...)))
		return fmt.Errorf("%w (user %q)", ErrCredentials, user)
	}
	return s.finish(ctx, rm[:], bytes.Clone(rc), bytes.Clone(guid), kuid, role)
}

// finish sends RAKP message 3, derives the keys and verifies message 4.
func (s *Session) finish(ctx context.Context, rm, rc, guid, kuid, role []byte) error {
	sidm, sidc := binary.LittleEndian.AppendUint32(nil, s.console), binary.LittleEndian.AppendUint32(nil, s.bmc)
	sik := s.suite.hmac(kuid, rm, rc, role)
	request := append([]byte{0, 0, 0, 0}, sidc...)
	request = append(request, s.suite.hmac(kuid, rc, sidm, role)...)
	// With this message the session begins at the BMC: given up in between, it would stay there until the BMC forgets it.
	whole, cancel := undisturbed(ctx)
	defer cancel()
	answer, err := s.ask(whole, "RAKP message 3", payloadRAKP3, payloadRAKP4, 8, request)
	if errors.Is(err, ErrNoAnswer) {
		return fmt.Errorf("%w: %w", errHalfOpen, err)
	}
	if err != nil {
		return err
	}
	if !hmac.Equal(answer[8:], s.suite.hmac(sik, rm, sidc, guid)[:s.suite.checkBytes]) {
		return fmt.Errorf("%w: RAKP message 4 failed its integrity check; a BMC key (Kg) is not supported", ErrNoAnswer)
	}
	// Additional keying material (section 13.32).
	block, err := aes.NewCipher(s.suite.hmac(sik, bytes.Repeat([]byte{2}, 20))[:16])
	if err != nil {
		return fmt.Errorf("make the session's cipher: %w", err)
	}
	s.keys = keys{integrity: s.suite.hmac(sik, bytes.Repeat([]byte{1}, 20)), encryption: block}
	s.active = true
	return nil
}

// ask sends a message of the set-up, whose first byte is a tag, and returns the answer, of at least so many bytes. All answers begin with tag,
// status, two bytes, and our session's ID.
//
// OpenBMC refuses with tag 0 and without our session's ID (phosphor-net-ipmid, RAKP12): nothing ties such a refusal to the request, so
// anybody could have sent it. It counts only if no proper answer comes while one is waited for.
func (s *Session) ask(ctx context.Context, name string, kind, answerKind byte, atLeast int, request []byte) ([]byte, error) {
	if s.message++; s.message == 0 {
		s.message++ // tag 0 is that of refusals that nothing ties to a request
	}
	request[0] = s.message
	tries := tries
	if kind == payloadRAKP3 {
		tries = confirmTries
	}
	var answer, untied []byte
	err := s.exchange(ctx, tries, setupWait,
		func() []byte { return s.seal(kind, request) },
		func() bool { return untied != nil },
		func(kind byte, payload []byte) bool {
			if kind != answerKind || len(payload) < 2 {
				return false
			}
			if payload[0] != s.message {
				if untied == nil && s.untiedRefusal(payload) {
					untied = bytes.Clone(payload)
				}
				return false
			}
			ours := len(payload) >= 8 && binary.LittleEndian.Uint32(payload[4:]) == s.console
			if payload[1] != 0 {
				// A refusal may end before our session's ID or have none; one with another ID came late, of an earlier try.
				ours = ours || len(payload) < 8 || binary.LittleEndian.Uint32(payload[4:]) == 0
			} else if len(payload) < atLeast {
				return false
			}
			if !ours {
				return false
			}
			answer = bytes.Clone(payload)
			return true
		})
	if err != nil && untied != nil && ctx.Err() == nil {
		return nil, &statusError{during: name, code: untied[1]}
	}
	if err != nil {
		return nil, err
	}
	if answer[1] != 0 {
		return nil, &statusError{during: name, code: answer[1]}
	}
	return answer, nil
}

// untiedRefusal reports whether a message refuses with tag 0, and with our session's ID or none.
func (s *Session) untiedRefusal(payload []byte) bool {
	if payload[0] != 0 || payload[1] == 0 || len(payload) < 8 {
		return false
	}
	id := binary.LittleEndian.Uint32(payload[4:])
	return id == 0 || id == s.console
}

// undisturbed is a context that ends at the other's deadline and for no other reason.
func undisturbed(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(context.WithoutCancel(ctx), deadline)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}
