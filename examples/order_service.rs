//! An order service: one transaction takes an item out of the stock, adds an order, and adds its price to what the
//! customer has spent. Programs on three machines sell at the same time, and the totals are checked at the end.

use farm::prelude::*;
use futures_util::future::try_join_all;

const ITEMS: u32 = 20;
const CUSTOMERS: u32 = 50;
const IN_STOCK: u64 = 100;
/// Tasks of each machine, and the orders that each of them tries to place.
const TASKS: u64 = 8;
const ORDERS: u64 = 100;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Item {
    left: u64,
    price: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Customer {
    orders: u64,
    spent: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Order {
    item: u64,
    price: u64,
}

#[derive(Clone, Copy)]
struct Shop {
    stock: Table<u32, Item>,
    customers: Table<u32, Customer>,
    /// The orders by customer and number.
    orders: Table<(u32, u64), Order>,
}

/// Why an order is not placed.
#[derive(Debug)]
enum OrderError {
    SoldOut,
    Farm(Error),
}

impl From<Error> for OrderError {
    fn from(error: Error) -> Self {
        Self::Farm(error)
    }
}

impl Shop {
    fn create(cluster: &Cluster) -> farm::Result<Self> {
        Ok(Self {
            stock: cluster.create_table("stock", ITEMS.into())?,
            customers: cluster.create_table("customers", CUSTOMERS.into())?,
            orders: cluster.create_table("orders", 10_000)?,
        })
    }

    /// Places an order, and returns its number.
    async fn order(&self, farm: &Farm, customer: u32, item: u32) -> Result<u64, OrderError> {
        farm.try_transact(async |tx| {
            let found = self.stock.get(tx, item).await?;
            let Item { left, price } = found.ok_or(Error::not_found(format!("item {item}")))?;
            let left = left.checked_sub(1).ok_or(OrderError::SoldOut)?;
            self.stock.put(tx, item, Item { left, price }).await?;

            let mut account = self.customers.get_or_default(tx, customer).await?;
            let number = account.orders;
            account.orders += 1;
            account.spent += price;
            self.customers.put(tx, customer, account).await?;

            let item = item.into();
            let order = Order { item, price };
            self.orders.insert(tx, (customer, number), order).await?;
            Ok(number)
        })
        .await
    }

    /// Places orders, one after another. Returns how many were placed.
    async fn sell(&self, farm: &Farm, seed: u64) -> farm::Result<u64> {
        let (mut dice, mut placed) = (seed, 0);
        for _ in 0..ORDERS {
            dice = dice
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let (customer, item) = ((dice >> 33) as u32 % CUSTOMERS, (dice >> 48) as u32 % ITEMS);
            match self.order(farm, customer, item).await {
                Ok(_) => placed += 1,
                Err(OrderError::SoldOut) => {}
                Err(OrderError::Farm(error)) => return Err(error),
            }
        }
        Ok(placed)
    }

    /// Checks that stock, orders and customers agree, in one transaction. Returns the number of orders.
    async fn check(&self, farm: &Farm) -> farm::Result<u64> {
        farm.transact(async |tx| {
            let (mut orders, mut spent, mut sold) = (0, 0, vec![0; ITEMS as usize]);
            for customer in 0..CUSTOMERS {
                let account = self.customers.get_or_default(tx, customer).await?;
                for number in 0..account.orders {
                    let order = self.orders.get(tx, (customer, number)).await?;
                    let order = order.ok_or(Error::not_found(format!("order {number}")))?;
                    sold[order.item as usize] += 1;
                    spent += order.price;
                }
                orders += account.orders;
                spent -= account.spent;
            }
            for (item, sold) in (0..ITEMS).zip(sold) {
                let left = self.stock.get_or_default(tx, item).await?.left;
                assert_eq!(left + sold, IN_STOCK, "item {item}");
            }
            assert_eq!(
                spent, 0,
                "what the customers spent is the price of their orders"
            );
            Ok(orders)
        })
        .await
    }
}

fn main() -> farm::Result<()> {
    let cluster = Cluster::local(3).start()?;
    let shop = Shop::create(&cluster)?;
    cluster.block_on(async |farm| {
        for item in 0..ITEMS {
            let price = 100 + u64::from(item);
            let left = IN_STOCK;
            shop.stock.insert(&farm, item, Item { left, price }).await?;
        }
        // Each machine sells by itself.
        let mut selling = Vec::new();
        for farm in cluster.farms() {
            let machine = u64::from(farm.machine().get());
            selling.extend((0..TASKS).map(|task| shop.sell(farm, machine * TASKS + task)));
        }
        let placed: u64 = try_join_all(selling).await?.into_iter().sum();
        let found = shop.check(&farm).await?;
        println!("{placed} orders were placed, and {found} are stored");
        assert_eq!(placed, found);
        Ok(())
    })
}
