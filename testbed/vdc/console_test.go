package vdc

import (
	"bufio"
	"context"
	"net"
	"path/filepath"
	"runtime"
	"testing"
)

func TestManyShareAConsole(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	socket := filepath.Join(t.TempDir(), "console")
	serial, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := newConsole(socket)
	served := make(chan struct{})
	go func() { defer close(served); c.serve(ctx, listener) }()
	var clients []net.Conn
	for range 2 {
		client, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, client)
	}
	// The machine starts, and prints to whoever is there.
	followed := make(chan struct{})
	go func() { defer close(followed); c.follow(ctx) }()
	machine, err := serial.Accept()
	if err != nil {
		t.Fatal(err)
	}
	// What is typed or printed while not all are there is lost.
	for there := false; !there; runtime.Gosched() {
		c.mu.Lock()
		there = c.machine != nil && len(c.clients) == len(clients)
		c.mu.Unlock()
	}
	fromMachine := bufio.NewReader(machine)
	for i, client := range clients {
		if _, err := client.Write([]byte("root\n")); err != nil {
			t.Fatal(err)
		}
		if line, err := fromMachine.ReadString('\n'); err != nil || line != "root\n" {
			t.Fatalf("client %d typed %q, %v", i, line, err)
		}
	}
	if _, err := machine.Write([]byte("login:\n")); err != nil {
		t.Fatal(err)
	}
	for i, client := range clients {
		if line, err := bufio.NewReader(client).ReadString('\n'); err != nil || line != "login:\n" {
			t.Errorf("client %d saw %q, %v", i, line, err)
		}
	}
	// The machine ends: its clients stay. The console ends: they don't.
	machine.Close()
	<-followed
	cancel()
	<-served
	if _, err := bufio.NewReader(clients[0]).ReadString('\n'); err == nil {
		t.Error("a client is still connected to a console that has ended")
	}
}
