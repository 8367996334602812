// Package rmcpplus is the client's side of IPMI 2.0 over LAN (RMCP+): a session with a BMC, commands in it, and its serial console.
//
// Sections and tables cited are those of "IPMI Intelligent Platform Management Interface Specification, Second Generation v2.0",
// revision 1.1. What a BMC sends is believed only if it carries the session's integrity check (section 13.28.4): a datagram that says
// "the power is off" may come from anybody. Cipher suites 17 and 3 (table 22-20) are spoken, no weaker ones. It must never log or
// return a password. Start with Dial.
package rmcpplus

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// Errors that callers tell apart.
var (
	// ErrCredentials: the BMC does not know the user, or has another password.
	ErrCredentials = errors.New("the BMC refused the user or the password")
	// ErrNoAnswer: nothing came back, or nothing that could be believed.
	ErrNoAnswer = errors.New("the BMC does not answer")
	// ErrBusy: the BMC has no session left.
	ErrBusy = errors.New("the BMC has no free session")
)

// Completion is the error of a command that the BMC did not complete: its completion code (table 5-2).
type Completion struct {
	NetFn, Command, Code byte
}

func (c *Completion) Error() string {
	text := map[byte]string{
		0xC0: "the BMC is busy", 0xC1: "unknown command", 0xC3: "the command took too long", 0xC7: "the request is too short", 0xC9: "a parameter is out of range",
		0xCC: "a field is not valid", 0xCE: "the BMC can't answer now", 0xD4: "the user lacks the privilege", 0xD5: "not possible in the present state", 0xFF: "unspecified error",
	}[c.Code]
	if text == "" {
		text = "see table 5-2 of the IPMI specification"
	}
	return fmt.Sprintf("the BMC answered command %02Xh of function %02Xh with completion code %02Xh: %s", c.Command, c.NetFn, c.Code, text)
}

// errHalfOpen: the last answer of the set-up did not come. Most BMCs don't repeat it, since for them the session has begun.
var errHalfOpen = errors.New("the session was not confirmed")

// Privilege levels (table 22-19).
const (
	privilegeOperator      = 3
	privilegeAdministrator = 4
)

// How often and how long a message is repeated that gets no answer. A BMC that is asked anew during the set-up of a session may begin anew,
// so there is more time then.
const (
	commandWait = time.Second
	setupWait   = 2 * time.Second
	tries       = 4
	// confirmTries is for the last message of the set-up, see errHalfOpen.
	confirmTries = 2
)

// Session is a session with a BMC. It must be closed. Its methods are for one goroutine.
type Session struct {
	conn  net.Conn
	suite suite
	keys  keys

	console, bmc uint32 // session IDs: ours and the BMC's
	sequence     uint32 // of the last packet sent in the session
	window       window
	message      byte // sequence of the last command, 6 bits
	active       bool
	buffer       [2048]byte
}

// Dial opens a session with the BMC at HOST:PORT, as a user who may control the power. suites are the cipher suites to try; without any, 17
// and then 3. The context bounds the set-up only.
func Dial(ctx context.Context, address, user, password string, suites ...int) (*Session, error) {
	if len(user) > 16 || len(password) > 20 {
		return nil, fmt.Errorf("IPMI has users of up to 16 bytes and passwords of up to 20; these have %d and %d: %w", len(user), len(password), ErrCredentials)
	}
	if len(suites) == 0 {
		suites = []int{17, 3}
	}
	var failed error
	for _, id := range suites {
		chosen, ok := cipherSuites[id]
		if !ok {
			return nil, fmt.Errorf("cipher suite %d is not supported; 17 and 3 are", id)
		}
		for _, privilege := range []byte{privilegeAdministrator, privilegeOperator} {
			s, err := dial(ctx, address, user, password, chosen, privilege)
			for again := 0; again < 2 && errors.Is(err, errHalfOpen) && ctx.Err() == nil; again++ {
				s, err = dial(ctx, address, user, password, chosen, privilege)
			}
			if err == nil {
				return s, nil
			}
			failed = err
			var status *statusError
			if !errors.As(err, &status) || !status.privilege() {
				break // another privilege would not help
			}
		}
		var status *statusError
		if ctx.Err() != nil || errors.Is(failed, errHalfOpen) || !errors.Is(failed, ErrNoAnswer) && !(errors.As(failed, &status) && status.suite()) {
			break // another suite would not help
		}
	}
	return nil, failed
}

func dial(ctx context.Context, address, user, password string, chosen suite, privilege byte) (*Session, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	s := &Session{conn: conn, suite: chosen}
	for s.console == 0 {
		var id [5]byte
		rand.Read(id[:]) // never fails (crypto/rand)
		s.console, s.message = binary.LittleEndian.Uint32(id[:]), id[4]
	}
	if err := s.setUp(ctx, user, password, privilege); err != nil {
		_ = conn.Close()
		return nil, err
	}
	// Set Session Privilege Level (section 22.18): a session begins as "user", who may not switch the power.
	if _, err := s.Command(ctx, 0x06, 0x3B, privilege); err != nil {
		_ = s.Close(ctx)
		return nil, fmt.Errorf("get the privilege to control power: %w", err)
	}
	return s, nil
}

// String names the session without its keys.
func (s *Session) String() string { return "RMCP+ session with " + s.conn.RemoteAddr().String() }

// GoString does so too.
func (s *Session) GoString() string { return s.String() }

// Suite is the session's cipher suite.
func (s *Session) Suite() int { return s.suite.id }

// Close ends the session at the BMC, which has few, whether or not ctx has ended, and closes the socket.
func (s *Session) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	var err error
	if s.active {
		_, err = s.Command(ctx, 0x06, 0x3C, binary.LittleEndian.AppendUint32(nil, s.bmc)...) // Close Session, section 22.19
		s.active = false
	}
	return errors.Join(err, s.conn.Close())
}

// Command sends a command and returns the data of its answer, without the completion code. The error is a *Completion if the BMC did not
// complete it.
func (s *Session) Command(ctx context.Context, netFn, command byte, data ...byte) ([]byte, error) {
	s.message = (s.message + 1) & 0x3F
	request := ipmiMessage(netFn, s.message, command, data)
	var answer []byte
	err := s.exchange(ctx, tries, commandWait,
		func() []byte { return s.seal(payloadIPMI, request) },
		func() bool { return false },
		func(kind byte, payload []byte) bool {
			if kind != payloadIPMI {
				return false
			}
			var ok bool
			answer, ok = readAnswer(payload, netFn, s.message, command)
			return ok
		})
	if err != nil {
		return nil, err
	}
	if answer[0] != 0 {
		return nil, &Completion{NetFn: netFn, Command: command, Code: answer[0]}
	}
	return answer[1:], nil
}

// exchange sends what build makes until take takes an answer, or until enough reports, after a wait, that repeating is of no use. Answers that
// can't be believed are skipped.
func (s *Session) exchange(
	ctx context.Context, tries int, wait time.Duration, build func() []byte, enough func() bool, take func(kind byte, payload []byte) bool,
) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for range tries {
		if ctx.Err() != nil {
			break
		}
		if err := s.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			break // it ended before the deadline was set: AfterFunc's was replaced
		}
		if _, err := s.conn.Write(build()); err != nil {
			return fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		taken, err := s.receive(take)
		if err != nil || taken {
			return err
		}
		if enough() {
			break
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w in time", ErrNoAnswer)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrNoAnswer, context.Cause(ctx))
	}
	return fmt.Errorf("%w (asked %d times)", ErrNoAnswer, tries)
}

// receive reads packets until one is taken or the deadline has passed, which is no error.
func (s *Session) receive(take func(kind byte, payload []byte) bool) (taken bool, err error) {
	for {
		n, err := s.conn.Read(s.buffer[:])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, nil
		case errors.Is(err, syscall.ECONNREFUSED):
			return false, fmt.Errorf("%w: nothing listens at %s", ErrNoAnswer, s.conn.RemoteAddr())
		case err != nil:
			return false, fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		if kind, payload, ok := s.open(s.buffer[:n]); ok && take(kind, payload) {
			return true, nil
		}
	}
}
