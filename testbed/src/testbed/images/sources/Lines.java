// Lines over TCP, by blocking sockets, channels with a selector, and Netty: "serve PORT" gives back what it gets at this
// port and the next two, "ask HOST COUNT PORT..." makes connections one after another and expects its line back on each.
import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

class Lines {
  static final int LIMIT = 30; // seconds for an answer
  static final NioEventLoopGroup LOOP = new NioEventLoopGroup(1);

  interface Client {
    byte[] ask(InetSocketAddress server, byte[] line) throws Exception;
  }

  interface Server {
    void serve() throws Exception;
  }

  // --- blocking ---

  static void serveBlocking(int port) throws IOException {
    try (ServerSocket listener = new ServerSocket(port)) {
      while (true) {
        Socket socket = listener.accept();
        background(() -> {
          try (socket) {
            socket.getInputStream().transferTo(socket.getOutputStream());
          }
        });
      }
    }
  }

  static byte[] askBlocking(InetSocketAddress server, byte[] line) throws IOException {
    try (Socket socket = new Socket()) {
      socket.setSoTimeout(LIMIT * 1000);
      socket.connect(server, LIMIT * 1000);
      socket.getOutputStream().write(line);
      return socket.getInputStream().readNBytes(line.length);
    }
  }

  // --- channels and a selector ---

  static void serveChannels(int port) throws IOException {
    Selector selector = Selector.open();
    ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress(port));
    listener.configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
    ByteBuffer data = ByteBuffer.allocate(1 << 14);
    while (true) {
      selector.select(key -> {
        try {
          if (key.isAcceptable()) {
            SocketChannel accepted = listener.accept();
            if (accepted != null) accepted.configureBlocking(false).register(selector, SelectionKey.OP_READ);
          } else {
            echo((SocketChannel) key.channel(), data.clear());
          }
        } catch (IOException error) {
          key.cancel();
        }
      });
    }
  }

  static void echo(SocketChannel channel, ByteBuffer data) throws IOException {
    if (channel.read(data) < 0) {
      channel.close();
    } else {
      for (data.flip(); data.hasRemaining(); ) channel.write(data);
    }
  }

  static byte[] askChannel(InetSocketAddress server, byte[] line) throws IOException {
    ByteBuffer got = ByteBuffer.allocate(line.length);
    try (Selector selector = Selector.open(); SocketChannel channel = SocketChannel.open()) {
      SelectionKey key = channel.configureBlocking(false).register(selector, SelectionKey.OP_CONNECT);
      for (boolean connected = channel.connect(server); !connected; connected = channel.finishConnect()) {
        if (selector.select(LIMIT * 1000) == 0) throw new IOException("not connected");
        selector.selectedKeys().clear();
      }
      channel.write(ByteBuffer.wrap(line));
      key.interestOps(SelectionKey.OP_READ);
      while (got.hasRemaining()) {
        if (selector.select(LIMIT * 1000) == 0) throw new IOException("no answer");
        selector.selectedKeys().clear();
        if (channel.read(got) < 0) throw new IOException("an end");
      }
    }
    return got.array();
  }

  // --- Netty ---

  static class Echo extends ChannelInboundHandlerAdapter {
    @Override
    public void channelRead(ChannelHandlerContext context, Object data) {
      context.writeAndFlush(data);
    }
  }

  static void serveNetty(int port) throws InterruptedException {
    ChannelInitializer<NioSocketChannel> echo = new ChannelInitializer<>() {
      @Override
      protected void initChannel(NioSocketChannel channel) {
        channel.pipeline().addLast(new Echo());
      }
    };
    new ServerBootstrap().group(LOOP).channel(NioServerSocketChannel.class).childHandler(echo).bind(port).sync();
  }

  static byte[] askNetty(InetSocketAddress server, byte[] line) throws Exception {
    CompletableFuture<byte[]> answer = new CompletableFuture<>();
    ChannelInboundHandlerAdapter handler = new ChannelInboundHandlerAdapter() {
      final ByteBuf got = Unpooled.buffer();

      @Override
      public void channelActive(ChannelHandlerContext context) {
        context.writeAndFlush(Unpooled.wrappedBuffer(line));
      }

      @Override
      public void channelRead(ChannelHandlerContext context, Object data) {
        got.writeBytes((ByteBuf) data);
        ((ByteBuf) data).release();
        if (got.readableBytes() < line.length) return;
        byte[] all = new byte[got.readableBytes()];
        got.readBytes(all);
        answer.complete(all);
        context.close();
      }

      @Override
      public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        answer.completeExceptionally(cause);
      }
    };
    new Bootstrap().group(LOOP).channel(NioSocketChannel.class).handler(handler).connect(server).sync();
    return answer.get(LIMIT, TimeUnit.SECONDS);
  }

  // --- all of them ---

  static void background(Server server) {
    new Thread(() -> {
      try {
        server.serve();
      } catch (Exception error) {
        error.printStackTrace();
      }
    }).start();
  }

  public static void main(String[] words) throws Exception {
    if (words[0].equals("serve")) {
      int port = Integer.parseInt(words[1]);
      background(() -> serveBlocking(port));
      background(() -> serveChannels(port + 1));
      serveNetty(port + 2);
      return;
    }
    Map<String, Client> clients = Map.of("blocking", Lines::askBlocking, "channel", Lines::askChannel, "netty", Lines::askNetty);
    int failed = 0;
    for (Map.Entry<String, Client> client : clients.entrySet()) {
      for (int index = 3; index < words.length; index++) {
        InetSocketAddress server = new InetSocketAddress(words[1], Integer.parseInt(words[index]));
        for (int number = 0; number < Integer.parseInt(words[2]); number++) {
          String line = "line " + number + "\n";
          try {
            String got = new String(client.getValue().ask(server, line.getBytes()));
            if (!got.equals(line)) throw new IOException("got " + got);
          } catch (Exception error) {
            System.err.println(client.getKey() + " to " + server + ", " + line + error);
            failed = 1;
          }
        }
      }
    }
    System.exit(failed);
  }
}
