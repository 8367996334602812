package console_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/console"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

func target(address string) power.Target {
	return power.Target{
		Name: "m1", Control: api.PowerControl{Kind: api.PowerIPMI, Address: address},
		Credentials: power.Credentials{User: powertest.User, Password: powertest.Password},
	}
}

// talk types at one end and reads at the other, both ways, more than one packet holds.
func talk(t *testing.T, user io.ReadWriter, machine net.Conn) {
	t.Helper()
	typed := strings.Repeat("echo typed by hand; ", 30) + "\r"
	written := make(chan error, 1)
	go func() { _, err := io.WriteString(user, typed); written <- err }()
	got := make([]byte, len(typed))
	if _, err := io.ReadFull(machine, got); err != nil || string(got) != typed {
		t.Fatalf("the machine read %q, %v", got, err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	printed := bytes.Repeat([]byte("printed by the kernel\r\n\x00\xff"), 200)
	go func() { _, err := machine.Write(printed); written <- err }()
	got = make([]byte, len(printed))
	if n, err := io.ReadFull(user, got); err != nil || !bytes.Equal(got, printed) {
		t.Fatalf("the user read %d bytes, %v", n, err)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
}

func TestAConsoleServersPortIsConnected(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := console.Dial(t.Context(), "tcp://"+l.Addr().String(), power.Target{Name: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	machine, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	talk(t, c, machine)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := bufio.NewReader(machine).ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after closing the machine reads %v", err)
	}
}

func TestSerialOverLANCarriesBothWaysAndIsGivenBack(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSim(t)
	machine, err := sim.Console.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer machine.Close()
	for range 2 {
		c, err := console.Dial(t.Context(), console.SOL, target(sim.Address))
		if err != nil {
			t.Fatal(err)
		}
		if other, err := console.Dial(t.Context(), console.SOL, target(sim.Address)); err == nil || !strings.Contains(err.Error(), "the console is in use") {
			t.Errorf("two have the console: %v, %v", other, err)
		}
		talk(t, c, machine)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Write([]byte("x")); err == nil {
			t.Error("typed after closing")
		}
	}
	wrong := target(sim.Address)
	wrong.Credentials.Password = "wrong"
	if _, err := console.Dial(t.Context(), console.SOL, wrong); !errors.Is(err, power.ErrCredentials) {
		t.Errorf("got %v", err)
	}
}

func TestAddressesThatAreNoneAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := console.Dial(t.Context(), "", power.Target{Name: "m1"}); !errors.Is(err, console.ErrNone) {
		t.Errorf("got %v", err)
	}
	for _, address := range []string{"tcp://", "tcp://host", "tcp://:22", "telnet://host:23", "host:23", "tcp://u@host:23", "tcp://host:23/x", "sol"} {
		if err := console.Check(address); err == nil {
			t.Errorf("%q was taken", address)
		}
		if _, err := console.Dial(t.Context(), address, power.Target{Name: "m1"}); err == nil {
			t.Errorf("%q was dialled", address)
		}
	}
	for _, address := range []string{"", "tcp://10.0.0.9:2001", "tcp://[fd00::9]:2001", console.SOL} {
		if err := console.Check(address); err != nil {
			t.Errorf("%q: %v", address, err)
		}
	}
}
