package bootctl

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestRequestsAreAnswered(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "boot.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go Serve(listener, func(r Request) Answer {
		if r.Do == "status" {
			return Answer{OK: true, Status: &Status{Local: true, RootBytes: 7}}
		}
		return Answer{Error: r.Do + " is not done here"}
	})
	answer, err := ask(t.Context(), socket, "status")
	if err != nil || answer.Status == nil || !answer.Status.Local || answer.Status.RootBytes != 7 {
		t.Errorf("status: %+v, %v", answer, err)
	}
	if _, err := ask(t.Context(), socket, "poweroff"); err == nil || !strings.Contains(err.Error(), "poweroff is not done here") {
		t.Errorf("a refusal: got %v", err)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("no json\n"))
	answerText := make([]byte, 200)
	if n, _ := conn.Read(answerText); !strings.Contains(string(answerText[:n]), "not a valid request") {
		t.Errorf("nonsense is answered with %q", answerText[:n])
	}
}

func TestNobodyThereIsAnErrorInTime(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := ask(ctx, filepath.Join(t.TempDir(), "boot.sock"), "reboot"); err == nil {
		t.Error("no error without a socket")
	}
}
