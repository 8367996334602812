package vm_test

import (
	"encoding/binary"
	"io"
	"testing"
	"time"
)

// screen asks once for a whole screen of a VNC server and returns its size and pixels (RFC 6143). The first call shakes hands.
type screen struct {
	conn          io.ReadWriter
	width, height uint16
	pixelBytes    int
}

func openScreen(t *testing.T, conn io.ReadWriter) *screen {
	t.Helper()
	read := func(n int) []byte {
		t.Helper()
		b := make([]byte, n)
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	write := func(b []byte) {
		t.Helper()
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if hello := read(12); string(hello) != "RFB 003.008\n" {
		t.Fatalf("the server says %q", hello)
	}
	write([]byte("RFB 003.008\n"))
	if types := read(int(read(1)[0])); len(types) != 1 || types[0] != 1 { // None
		t.Fatalf("the server wants security of types %v", types)
	}
	write([]byte{1})
	if result := read(4); binary.BigEndian.Uint32(result) != 0 {
		t.Fatalf("the server refuses: %v", result)
	}
	write([]byte{1}) // shared
	begin := read(24)
	read(int(binary.BigEndian.Uint32(begin[20:])))
	write([]byte{2, 0, 0, 1, 0, 0, 0, 0}) // raw pixels
	return &screen{conn, binary.BigEndian.Uint16(begin), binary.BigEndian.Uint16(begin[2:]), int(begin[4]) / 8}
}

// shows asks for the whole screen and counts its pixels that are not black.
func (s *screen) shows(t *testing.T) (lit int) {
	t.Helper()
	ask := []byte{3, 0, 0, 0, 0, 0, byte(s.width >> 8), byte(s.width), byte(s.height >> 8), byte(s.height)}
	if _, err := s.conn.Write(ask); err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 4)
	if _, err := io.ReadFull(s.conn, head); err != nil || head[0] != 0 {
		t.Fatalf("the server answers %v, %v", head, err)
	}
	for range binary.BigEndian.Uint16(head[2:]) {
		part := make([]byte, 12)
		if _, err := io.ReadFull(s.conn, part); err != nil {
			t.Fatal(err)
		}
		pixels := make([]byte, int(binary.BigEndian.Uint16(part[4:]))*int(binary.BigEndian.Uint16(part[6:]))*s.pixelBytes)
		if _, err := io.ReadFull(s.conn, pixels); err != nil {
			t.Fatal(err)
		}
		for i := 0; i+3 <= len(pixels); i += s.pixelBytes {
			if pixels[i]|pixels[i+1]|pixels[i+2] != 0 {
				lit++
			}
		}
	}
	return lit
}

func TestAMachinesDisplayShowsItsScreen(t *testing.T) {
	images := needGuests(t)
	images.image.Kernel.Arguments = "console=ttyS0 console=tty0"
	r := newRig(t, images)
	m := r.member(t)
	m.Assignment.Display = true
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	display, err := r.Display(t.Context(), m.Assignment.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = display.Close() }()
	s := openScreen(t, display)
	for deadline := time.Now().Add(patience); ; {
		if lit := s.shows(t); lit > 100 {
			t.Logf("%d of %dx%d pixels are lit", lit, s.width, s.height)
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the screen stays black")
		}
	}
}
