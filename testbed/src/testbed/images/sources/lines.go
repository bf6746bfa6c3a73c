// Lines over TCP, and pages over HTTP at the next port: "serve PORT", "ask HOST PORT COUNT" and "get HOST PORT COUNT".
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
)

func serve(port int) error {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	http.HandleFunc("/", func(out http.ResponseWriter, in *http.Request) { fmt.Fprintln(out, "a page") })
	go http.ListenAndServe(fmt.Sprintf(":%d", port+1), nil)
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer connection.Close()
			io.Copy(connection, connection)
		}()
	}
}

func ask(address string, number int) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	sent := fmt.Sprintf("line %d\n", number)
	fmt.Fprint(connection, sent)
	if got, err := bufio.NewReader(connection).ReadString('\n'); got != sent {
		return fmt.Errorf("sent %q, got %q: %v", sent, got, err)
	}
	return nil
}

func get(address string, _ int) error {
	transport := &http.Transport{DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Get("http://" + address + "/")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if page, err := io.ReadAll(answer.Body); err != nil || len(page) == 0 || answer.StatusCode != 200 {
		return fmt.Errorf("%d bytes, status %d: %v", len(page), answer.StatusCode, err)
	}
	return nil
}

// Does the same thing so many times, by four goroutines.
func repeat(what func(string, int) error, address string, count int) error {
	var group sync.WaitGroup
	failed := make(chan error, count)
	for worker := range 4 {
		group.Go(func() {
			for number := worker; number < count; number += 4 {
				if err := what(address, number); err != nil {
					failed <- err
				}
			}
		})
	}
	group.Wait()
	close(failed)
	return <-failed
}

func main() {
	var err error
	if len(os.Args) == 3 {
		port, _ := strconv.Atoi(os.Args[2])
		err = serve(port)
	} else {
		address := net.JoinHostPort(os.Args[2], os.Args[3])
		count, _ := strconv.Atoi(os.Args[4])
		err = repeat(map[string]func(string, int) error{"ask": ask, "get": get}[os.Args[1]], address, count)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
