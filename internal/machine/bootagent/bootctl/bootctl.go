// Package bootctl is how programs of a machine that booted over the network talk to its first process: power off, reboot, how far the
// root is.
//
// A question and an answer are one JSON line each on a Unix socket that only root can open. Start with PowerOff.
package bootctl

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
)

// Socket is where the boot agent listens.
const Socket = "/run/nearmetal/boot.sock"

// Request is a question.
type Request struct {
	// Do is "poweroff", "reboot" or "status".
	Do string `json:"do"`
}

// Answer answers a Request.
type Answer struct {
	OK     bool    `json:"ok"`
	Error  string  `json:"error,omitempty"`
	Status *Status `json:"status,omitempty"`
}

// Status is how far the machine's root is.
type Status struct {
	Manifest string `json:"manifest"`
	// Local: all of the root is on the machine, verified; nothing of it is read over the network.
	Local bool `json:"local"`
	// ReadBytes is of the chunks that programs read so far, HeldBytes of those that are local, RootBytes of all.
	ReadBytes int64 `json:"read_bytes"`
	HeldBytes int64 `json:"held_bytes"`
	RootBytes int64 `json:"root_bytes"`
	// PeerBytes came from other machines, verified.
	PeerBytes int64 `json:"peer_bytes"`
	// Touched are the chunks of the root that programs read, in the order of their first reading: a manifest's Early.
	Touched []int32 `json:"touched,omitempty"`
}

// Available tells whether this machine's first process is the boot agent.
func Available() bool {
	info, err := os.Stat(Socket)
	return err == nil && info.Mode()&os.ModeSocket != 0
}

// PowerOff asks the machine to end all that runs and switch itself off. It returns once that is accepted.
func PowerOff(ctx context.Context) error { return do(ctx, "poweroff") }

// Reboot asks the machine to end all that runs and start again from its firmware.
func Reboot(ctx context.Context) error { return do(ctx, "reboot") }

func do(ctx context.Context, what string) error {
	_, err := ask(ctx, Socket, what)
	return err
}

// ReadStatus returns how far the root is.
func ReadStatus(ctx context.Context) (Status, error) {
	answer, err := ask(ctx, Socket, "status")
	if err != nil {
		return Status{}, err
	}
	if answer.Status == nil {
		return Status{}, errors.New("the boot agent's answer lacks the status")
	}
	return *answer.Status, nil
}

func ask(ctx context.Context, socket, what string) (Answer, error) {
	fail := func(err error) (Answer, error) {
		return Answer{}, fmt.Errorf("ask this machine's first process for %s: %w", what, err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fail(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(Request{Do: what}); err != nil {
		return fail(err)
	}
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	if err != nil {
		return fail(err)
	}
	var answer Answer
	if err := json.Unmarshal(line, &answer); err != nil {
		return fail(err)
	}
	if !answer.OK {
		return fail(errors.New(answer.Error))
	}
	return answer, nil
}

// Serve answers requests on a listener until it is closed; handle gets each.
func Serve(listener net.Listener, handle func(Request) Answer) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var r Request
			answer := Answer{Error: "not a valid request"}
			if err := json.NewDecoder(bufio.NewReaderSize(conn, 4096)).Decode(&r); err == nil {
				answer = handle(r)
			}
			_ = json.NewEncoder(conn).Encode(answer)
		}()
	}
}
