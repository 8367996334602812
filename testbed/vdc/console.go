package vdc

import (
	"context"
	"net"
	"sync"
)

// console is a console server's port for one machine: many may be connected, whether the machine is on or off. All see what it prints, and
// what any of them types goes to it.
type console struct {
	socket string

	mu      sync.Mutex
	machine net.Conn
	clients map[net.Conn]struct{}
}

// newConsole is for a machine whose serial port QEMU offers at a Unix socket while it is on.
func newConsole(socket string) *console {
	return &console{socket: socket, clients: map[net.Conn]struct{}{}}
}

// serve takes clients until ctx ends.
func (c *console) serve(ctx context.Context, listener net.Listener) {
	var clients sync.WaitGroup
	defer clients.Wait()
	stop := context.AfterFunc(ctx, func() {
		listener.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		for client := range c.clients {
			client.Close()
		}
		if c.machine != nil {
			c.machine.Close()
		}
	})
	defer stop()
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		c.clients[client] = struct{}{}
		c.mu.Unlock()
		if ctx.Err() != nil {
			client.Close()
		}
		clients.Go(func() { c.read(client) })
	}
}

// read sends a client's keys to the machine, if it is on.
func (c *console) read(client net.Conn) {
	defer func() {
		c.mu.Lock()
		delete(c.clients, client)
		c.mu.Unlock()
		client.Close()
	}()
	keys := make([]byte, 1024)
	for {
		n, err := client.Read(keys)
		if err != nil {
			return
		}
		c.mu.Lock()
		machine := c.machine
		c.mu.Unlock()
		if machine != nil {
			_, _ = machine.Write(keys[:n])
		}
	}
}

// follow shows the clients what the machine prints, from its start to its end.
func (c *console) follow(ctx context.Context) {
	machine, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return
	}
	c.mu.Lock()
	c.machine = machine
	c.mu.Unlock()
	if ctx.Err() != nil {
		machine.Close()
	}
	defer func() {
		c.mu.Lock()
		if c.machine == machine {
			c.machine = nil
		}
		c.mu.Unlock()
		machine.Close()
	}()
	text := make([]byte, 4096)
	for {
		n, err := machine.Read(text)
		if err != nil {
			return
		}
		for _, client := range c.connected() {
			if _, err := client.Write(text[:n]); err != nil {
				client.Close()
			}
		}
	}
}

func (c *console) connected() []net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	clients := make([]net.Conn, 0, len(c.clients))
	for client := range c.clients {
		clients = append(clients, client)
	}
	return clients
}
