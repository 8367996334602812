package rmcpplus

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/hex"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

// pair are two ends of a session, of the BMC's side made from ours.
func pair(t testing.TB, id int) (console, bmc *Session) {
	t.Helper()
	block, err := aes.NewCipher(bytes.Repeat([]byte{7}, 16))
	if err != nil {
		t.Fatal(err)
	}
	k := keys{integrity: bytes.Repeat([]byte{9}, 20), encryption: block}
	console = &Session{suite: cipherSuites[id], keys: k, console: 0x11223344, bmc: 0x55667788, active: true}
	bmc = &Session{suite: cipherSuites[id], keys: k, console: console.bmc, bmc: console.console, active: true}
	return console, bmc
}

func TestWhatOneSideSealsTheOtherOpens(t *testing.T) {
	t.Parallel()
	for _, id := range []int{3, 17} {
		console, bmc := pair(t, id)
		for size := range 100 {
			payload := bytes.Repeat([]byte{byte(size)}, size)
			packet := bmc.seal(payloadSOL, payload)
			kind, got, ok := console.open(packet)
			if (len(packet)-4-console.suite.checkBytes)%4 != 0 { // table 13-8, Integrity PAD: BMCs differ in whether they insist
				t.Fatalf("suite %d, %d bytes: the integrity check covers %d bytes, which is no multiple of 4", id, size, len(packet)-4-console.suite.checkBytes)
			}
			if !ok || kind != payloadSOL || !bytes.Equal(got, payload) {
				t.Fatalf("suite %d, %d bytes: got %d, %x, %v", id, size, kind, got, ok)
			}
			if _, _, ok := console.open(packet); ok {
				t.Fatalf("suite %d: a packet was taken twice", id)
			}
		}
	}
}

func TestWhatDoesNotCarryTheSessionsCheckIsNotBelieved(t *testing.T) {
	t.Parallel()
	console, bmc := pair(t, 17)
	packet := bmc.seal(payloadIPMI, []byte("the power is off"))
	for i := range packet {
		if i >= 1 && i <= 2 || i == 3 {
			continue // reserved, sequence and class of RMCP: outside of the check
		}
		for bit := range 8 {
			forged := bytes.Clone(packet)
			forged[i] ^= 1 << bit
			if _, _, ok := console.open(forged); ok {
				t.Errorf("byte %d, bit %d changed, and it was believed", i, bit)
			}
		}
	}
	answer := ipmiMessage(0x01, 1, 0x01, []byte{0, 0x20})
	for name, forged := range map[string][]byte{
		"IPMI 1.5, no authentication": append([]byte("\x06\x00\xff\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00"+string(byte(len(answer)))), answer...),
		"IPMI 2.0, in the clear":      (&Session{}).seal(payloadIPMI, answer),
	} {
		if _, _, ok := console.open(forged); ok {
			t.Errorf("%s: believed", name)
		}
	}
	if _, _, ok := console.open(packet); !ok {
		t.Error("the true one is not taken any more")
	}
}

func TestPacketsOutOfOrderAreTakenOnce(t *testing.T) {
	t.Parallel()
	var w window
	for _, step := range []struct {
		sequence uint32
		want     bool
	}{{1, true}, {3, true}, {2, true}, {2, false}, {3, false}, {40, true}, {9, true}, {8, false}, {41, true}, {40, false}, {1000, true}, {41, false}} {
		if got := w.take(step.sequence); got != step.want {
			t.Errorf("%d: got %v", step.sequence, got)
		}
	}
}

// Messages as the specification's examples and other implementations write them.
func TestMessagesAreAsOnTheWire(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		got  []byte
		want string
	}{
		"Get Chassis Status (section 28.2), sequence 1": {ipmiMessage(chassisFn, 1, 0x01, nil), "2000e081040 17a"},
		"Chassis Control up (section 28.3), sequence 2": {ipmiMessage(chassisFn, 2, 0x02, []byte{1}), "2000e081080 20174"},
		"a packet in the clear (table 13-8)":            {(&Session{}).seal(payloadRAKP1, []byte{1, 2}), "0600ff0706120000000000000000 02000102"},
	} {
		want, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(tt.want), []byte(" "), nil)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(tt.got, want) {
			t.Errorf("%s: got %x, want %x", name, tt.got, want)
		}
	}
}

const chassisFn = 0x00

func FuzzNothingThatComesEndsTheProgramOrIsBelieved(f *testing.F) {
	console, bmc := pair(f, 3)
	f.Add(bmc.seal(payloadIPMI, []byte("x")))
	f.Add([]byte("\x06\x00\xff\x07\x06\xc0\x44\x33\x22\x11\x01\x00\x00\x00\x10\x00"))
	f.Add([]byte(rmcp))
	f.Fuzz(func(t *testing.T, packet []byte) {
		console.window = window{}
		if _, payload, ok := console.open(packet); ok && bytes.Equal(payload, []byte("y")) {
			t.Error("believed")
		}
		clear := &Session{suite: cipherSuites[3]}
		if _, payload, ok := clear.open(packet); ok {
			readAnswer(payload, 0, 0, 0)
		}
		readAnswer(packet, 0, 0, 0)
		decrypt(console.keys.encryption, packet)
	})
}

func dialled(t *testing.T, address string) *Session {
	t.Helper()
	s, err := Dial(t.Context(), address, powertest.User, powertest.Password)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestABMCWithoutAFreeSessionIsBusyAndNotUnreachable(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t)
	var open []*Session
	for {
		s, err := Dial(t.Context(), sim.Address, powertest.User, powertest.Password)
		if errors.Is(err, ErrBusy) {
			break
		}
		if err != nil || len(open) > 100 {
			t.Fatalf("with %d sessions: %v", len(open), err)
		}
		open = append(open, s)
	}
	for _, s := range open {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 * len(open) { // closed even when its context has ended
		if err := dialled(t, sim.Address).Close(ended); err != nil {
			t.Error(err)
		}
	}
}

// lossy is an address before a BMC's where the datagrams of both ways that lose names by number, from 1 on, don't arrive.
func lossy(t *testing.T, bmc string, lose func(number int64) bool) string {
	t.Helper()
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	back, err := net.Dial("udp", bmc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { front.Close(); back.Close() })
	var number atomic.Int64
	var client atomic.Value
	go func() {
		var buffer [2048]byte
		for {
			n, from, err := front.ReadFrom(buffer[:])
			if err != nil {
				return
			}
			client.Store(from)
			if !lose(number.Add(1)) {
				_, _ = back.Write(buffer[:n])
			}
		}
	}()
	go func() {
		var buffer [2048]byte
		for {
			n, err := back.Read(buffer[:])
			if err != nil {
				return
			}
			if !lose(number.Add(1)) {
				_, _ = front.WriteTo(buffer[:n], client.Load().(net.Addr))
				_, _ = front.WriteTo(buffer[:n], client.Load().(net.Addr)) // and twice
			}
		}
	}()
	return front.LocalAddr().String()
}

func TestLostAndDoubledDatagramsAreSurvived(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t)
	for _, lost := range []int64{2, 4, 5, 8, 10, 14} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			s := dialled(t, lossy(t, sim.Address, func(number int64) bool { return number == lost }))
			if status, err := s.Command(t.Context(), chassisFn, 0x01); err != nil || len(status) < 3 {
				t.Errorf("datagram %d lost: %x, %v", lost, status, err)
			}
			_ = s.Close(t.Context()) // the BMC does not repeat this answer: it knows the session no more
		})
	}
}

func TestABMCThatIsSlowerThanWeRepeatIsWaitedFor(t *testing.T) {
	t.Parallel()
	s, bmc := pair(t, 17)
	front, back := net.Pipe() // a conn that does not lose anything
	s.conn = front
	go func() {
		var buffer [2048]byte
		var first []byte
		for {
			n, err := back.Read(buffer[:])
			if err != nil {
				return
			}
			_, request, ok := bmc.open(buffer[:n])
			if !ok {
				return
			}
			if first == nil { // it answers the first only when the second has come
				first = bytes.Clone(request)
				continue
			}
			answer := []byte{0x81, 1 << 2, 0, 0x20, first[4], first[5], 0, 0x21, 0, 0, 0}
			answer[2], answer[10] = checksum(answer[:2]), 0
			answer[10] = checksum(answer[3:])
			if _, err := back.Write(bmc.seal(payloadIPMI, answer)); err != nil {
				return
			}
		}
	}()
	defer back.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if status, err := s.Command(ctx, chassisFn, 0x01); err != nil || !bytes.Equal(status, []byte{0x21, 0, 0}) {
		t.Errorf("got %x, %v", status, err)
	}
}

func TestAnAnswerToAnotherCommandIsNoAnswer(t *testing.T) {
	t.Parallel()
	answer := func(sequence, command byte) []byte {
		m := []byte{addressConsole, (chassisFn | 1) << 2}
		m = append(m, checksum(m))
		body := []byte{addressBMC, sequence << 2, command, 0, 0x21}
		return append(append(m, body...), checksum(body))
	}
	if data, ok := readAnswer(answer(2, 0x01), chassisFn, 2, 0x01); !ok || !bytes.Equal(data, []byte{0, 0x21}) {
		t.Fatalf("the answer is read as %x, %v", data, ok)
	}
	for name, late := range map[string][]byte{"the same, asked before": answer(1, 0x01), "another command": answer(2, 0x02)} {
		if _, ok := readAnswer(late, chassisFn, 2, 0x01); ok {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestABMCThatChoosesAWeakerSuiteIsRefused(t *testing.T) {
	t.Parallel()
	front, back := net.Pipe()
	s := &Session{conn: front, suite: cipherSuites[17], console: 0x11223344}
	go func() {
		defer back.Close()
		var buffer [2048]byte
		n, err := back.Read(buffer[:])
		if err != nil {
			return
		}
		_, request, _ := (&Session{}).open(buffer[:n])
		opened := make([]byte, 36) // table 13-10, with no algorithm at all
		opened[0] = request[0]
		copy(opened[4:], request[4:8])
		_, _ = back.Write((&Session{}).seal(payloadOpenResponse, opened))
	}()
	var status *statusError
	if err := s.setUp(t.Context(), "user", "password", privilegeOperator); !errors.As(err, &status) || !status.suite() {
		t.Errorf("got %v, want that it speaks another suite", err)
	}
}

func TestABMCThatDoesNotProveThePasswordIsNotBelieved(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t)
	for name, tt := range map[string]struct {
		kind byte
		want error
	}{"RAKP message 2": {payloadRAKP2, ErrCredentials}, "RAKP message 4": {payloadRAKP4, ErrNoAnswer}} {
		front, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		back, err := net.Dial("udp", sim.Address)
		if err != nil {
			t.Fatal(err)
		}
		go func() { // in between, changing the last byte of the check in a message of that kind
			var buffer [2048]byte
			for {
				n, client, err := front.ReadFrom(buffer[:])
				if err != nil {
					return
				}
				if _, err := back.Write(buffer[:n]); err != nil {
					return
				}
				if n, err = back.Read(buffer[:]); err != nil {
					return
				}
				if buffer[5] == tt.kind {
					buffer[n-1] ^= 1
				}
				_, _ = front.WriteTo(buffer[:n], client)
			}
		}()
		if s, err := Dial(t.Context(), front.LocalAddr().String(), powertest.User, powertest.Password, 3); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, %v; want %v", name, s, err, tt.want)
		}
		front.Close()
		back.Close()
	}
}

// With its third message the session begins at the BMC, which has few.
func TestASetUpThatIsGivenUpLeavesNoSession(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t)
	var open []*Session
	for s, err := Dial(t.Context(), sim.Address, powertest.User, powertest.Password); err == nil; s, err = Dial(t.Context(), sim.Address, powertest.User, powertest.Password) {
		open = append(open, s)
	}
	for _, s := range open {
		_ = s.Close(t.Context())
	}
	for range 2 * len(open) {
		ctx, cancel := context.WithCancel(t.Context())
		address := lossy(t, sim.Address, func(number int64) bool {
			if number == 5 { // Open Session and RAKP message 1 were answered: this is message 3
				cancel()
			}
			return false
		})
		if s, err := Dial(ctx, address, powertest.User, powertest.Password, 3); err == nil {
			_ = s.Close(ctx)
			t.Error("it was not given up")
		}
	}
	_ = dialled(t, sim.Address).Close(t.Context())
}
