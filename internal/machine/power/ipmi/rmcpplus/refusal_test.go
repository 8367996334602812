package rmcpplus

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

// between is an address before a BMC's. What say returns for an answer's kind arrives before the answer; the answer itself does if pass is true.
func between(t *testing.T, bmc string, say func(kind byte, console []byte) (before []byte, pass bool)) string {
	t.Helper()
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { front.Close() })
	go func() {
		var buffer [2048]byte
		backs := map[string]net.Conn{} // the BMC answers each client where it came from
		for {
			n, client, err := front.ReadFrom(buffer[:])
			if err != nil {
				break
			}
			back := backs[client.String()]
			if back == nil {
				if back, err = net.Dial("udp", bmc); err != nil {
					break
				}
				backs[client.String()] = back
				go relay(front, back, client, say)
			}
			_, _ = back.Write(buffer[:n])
		}
		for _, back := range backs {
			back.Close()
		}
	}()
	return front.LocalAddr().String()
}

func relay(front net.PacketConn, back net.Conn, client net.Addr, say func(kind byte, console []byte) ([]byte, bool)) {
	var buffer [2048]byte
	for {
		n, err := back.Read(buffer[:])
		if err != nil {
			return
		}
		pass := true
		if kind, payload, ok := (&Session{}).open(buffer[:n]); ok && len(payload) >= 8 {
			var before []byte
			if before, pass = say(kind, payload[4:8]); before != nil {
				_, _ = front.WriteTo((&Session{}).seal(kind, before), client)
			}
		}
		if pass {
			_, _ = front.WriteTo(buffer[:n], client)
		}
	}
}

// openBMCs is a refusal as OpenBMC sends it: the whole message, with nothing but a status in it.
func openBMCs(status byte) []byte { return append([]byte{0, status}, make([]byte, 38)...) }

func TestARefusalOfOpenBMCIsNoSilence(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t)
	for name, tt := range map[string]struct {
		kind, status byte
		want         error
		text         string
	}{
		"Open Session, no session free":    {payloadOpenResponse, 0x01, ErrBusy, "insufficient resources for a session"},
		"RAKP message 1, unknown user":     {payloadRAKP2, 0x0D, ErrCredentials, "unknown user"},
		"RAKP message 1, session is gone":  {payloadRAKP2, 0x02, ErrBusy, "no longer knows the session"},
		"RAKP message 3, the check failed": {payloadRAKP4, 0x0F, nil, "an integrity check failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := between(t, sim.Address, func(kind byte, console []byte) ([]byte, bool) {
				if kind != tt.kind {
					return nil, true
				}
				return openBMCs(tt.status), false
			})
			s, err := Dial(t.Context(), address, powertest.User, powertest.Password, 3)
			if err == nil {
				_ = s.Close(t.Context())
				t.Fatal("a session was opened")
			}
			if errors.Is(err, ErrNoAnswer) || tt.want != nil && !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v, with %q", err, tt.want, tt.text)
			}
		})
	}
}

func TestARefusalThatAnybodyCouldHaveSentDoesNotBeatTheBMCsAnswer(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t)
	address := between(t, sim.Address, func(kind byte, console []byte) ([]byte, bool) {
		if kind == payloadOpenResponse || kind == payloadRAKP2 || kind == payloadRAKP4 {
			return openBMCs(0x0D), true
		}
		return nil, true
	})
	if err := dialled(t, address).Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNoRequestHasTheTagOfRefusalsThatNothingTiesToOne(t *testing.T) {
	t.Parallel()
	front, back := net.Pipe()
	s := &Session{conn: front, message: 255}
	go func() {
		defer back.Close()
		var buffer [2048]byte
		if n, err := back.Read(buffer[:]); err == nil {
			_, request, _ := s.open(buffer[:n])
			_, _ = back.Write(s.seal(payloadRAKP2, []byte{request[0], 0x0D}))
		}
	}()
	var status *statusError
	if _, err := s.ask(t.Context(), "RAKP message 1", payloadRAKP1, payloadRAKP2, 40, []byte{9}); !errors.As(err, &status) || s.message == 0 {
		t.Errorf("the request's tag was %d: %v", s.message, err)
	}
}

func TestARefusalOfAnotherSessionOrWithoutAReasonIsNone(t *testing.T) {
	t.Parallel()
	s := &Session{console: 0x11223344}
	ours, others := openBMCs(0x0D), openBMCs(0x0D)
	binary.LittleEndian.PutUint32(ours[4:], s.console)
	binary.LittleEndian.PutUint32(others[4:], s.console+1)
	tagged := bytes.Clone(openBMCs(0x0D))
	tagged[0] = 7
	for name, tt := range map[string]struct {
		payload []byte
		want    bool
	}{
		"as OpenBMC sends it": {openBMCs(0x0D), true}, "with our session's ID": {ours, true}, "with another session's ID": {others, false},
		"without a reason": {openBMCs(0), false}, "with another tag": {tagged, false}, "cut short": {openBMCs(0x0D)[:4], false},
	} {
		if got := s.untiedRefusal(tt.payload); got != tt.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
